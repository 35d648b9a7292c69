"""The scripted engine: the embedded one, whose tokens are given. Ids and log-probs are true, only the choice is not the
model's: each forced token goes through the model and is recorded with the log-probability that it had there.

For whole sessions of real harnesses without a trained model: the model `tiny-long` has the window for them.
"""

import asyncio
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from qwengyre.engine.batch import Batch
from qwengyre.engine.calls import Call, Completion, EngineClosedError, RefusedCallError
from qwengyre.engine.embedded import EmbeddedEngine
from qwengyre.engine.running import Running
from qwengyre.engine.script import NoReplyError, Reply, Turn, load_script
from qwengyre.errors import ConfigError
from qwengyre.types import Ids


def _none() -> Ids:
    return np.empty(0, np.int32)


@dataclass(frozen=True)
class ForcedCall(Call):
    """A call whose next tokens are `forced`. `cut`: it ends after the last of them, by its length."""

    forced: Ids = field(default_factory=_none)
    cut: bool = False


class ScriptedEngine(EmbeddedEngine):
    """An `Engine` over `model` that says what `script` gives. `engine.args`: those of `embedded`, and

    `script`: a TOML file of rules, `package.module:name` or `path/file.py:name` (see `engine/script.py`);
    `tokenizer`: a HF folder, by default the model's own.
    """

    def __init__(self, model: nn.Module, *, script: str, tokenizer: str = "", **args: Any) -> None:
        super().__init__(model, **args)
        self._script = load_script(script)
        self._words = _Words(tokenizer or str(getattr(model, "name_or_path", "")))

    async def generate(self, call: Call) -> Completion:
        """See `EmbeddedEngine`. Refuses a call for which the script has no answer."""
        self._check()
        if self._status != "open":
            raise EngineClosedError(f"engine {self._name} is {self._status}")
        return await super().generate(await asyncio.to_thread(self._forced, call))

    def _forced(self, call: Call) -> Call:
        turn, partial = self._words.turn(call)
        try:
            reply = self._script(turn)
        except NoReplyError as error:
            raise RefusedCallError("invalid", str(error)) from None
        except Exception as error:  # a mistake in a user's script: the engine is well
            raise RefusedCallError("invalid", f"engine.args.script failed on this conversation: {error!r}") from error
        if reply is None:
            return call
        if isinstance(reply, str):
            reply = Reply(reply)
        stops = self._eos.union(call.stop_token_ids)
        ids = self._words.answer(reply, stops)
        left = ids[len(partial) :]
        if not np.array_equal(ids[: len(partial)], partial) or not len(left):
            raise RefusedCallError(
                "invalid", f"the script answers otherwise than before: {reply.written(thinking=False)[:200]!r}"
            )
        return ForcedCall(**vars(call), forced=left, cut=reply.finish == "length")

    def _make_batch(self, *args: Any) -> Batch:
        return ForcedBatch(*args)


class ForcedBatch(Batch):
    """A batch in which forced calls get the tokens that they are given."""

    def _sample(self, logits: Tensor, finished: list[Running]) -> None:
        forced = [i for i, r in enumerate(finished) if isinstance(r.call, ForcedCall)]
        free = [i for i, r in enumerate(finished) if not isinstance(r.call, ForcedCall)]
        if free:
            super()._sample(logits[free], [finished[i] for i in free])
        if forced:
            self._force(logits[forced], [finished[i] for i in forced])

    def _force(self, logits: Tensor, finished: list[Running]) -> None:
        temperatures = torch.tensor([r.call.temperature or 1.0 for r in finished], device=logits.device)
        tokens = [int(r.call.forced[r.output]) for r in finished if isinstance(r.call, ForcedCall)]
        logprobs = (logits / temperatures[:, None]).log_softmax(-1)
        chosen = logprobs.gather(1, torch.tensor(tokens, device=logits.device)[:, None])[:, 0].tolist()
        self.counts["decode_tokens"] += len(finished)
        for running, token, logprob in zip(finished, tokens, chosen, strict=True):
            self._append(running, token, logprob)

    def _append(self, running: Running, token: int, logprob: float) -> None:
        super()._append(running, token, logprob)
        call = running.call
        if isinstance(call, ForcedCall) and call.cut and running.output == len(call.forced) and running in self._active:
            self._finish(running, "length", None)


class _Words:
    """The tokenizer's part: prompts to conversations, replies to ids."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    @cached_property
    def _tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        try:
            return AutoTokenizer.from_pretrained(self._folder, local_files_only=True)
        except (OSError, ValueError) as error:
            raise ConfigError(f"engine.args.tokenizer={self._folder!r} cannot be loaded: {error}") from None

    @cached_property
    def _opening(self) -> tuple[str, Ids]:
        """What opens the assistant's turn."""
        talk = [{"role": "user", "content": "x"}]
        texts = [
            str(self._tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=opened))
            for opened in (False, True)
        ]
        text = texts[1][len(texts[0]) :]
        return text, self._encode(text)

    def turn(self, call: Call) -> tuple[Turn, Ids]:
        """The conversation in a prompt, and what was sampled of its answer already."""
        ids, (_, opening) = call.token_ids, self._opening
        starts = np.flatnonzero(ids == opening[0]) if len(opening) else np.empty(0, np.int64)
        at = next((int(s) for s in starts[::-1] if np.array_equal(ids[s : s + len(opening)], opening)), -1)
        end = len(ids) if at < 0 else at
        partial = _none() if at < 0 else ids[at + len(opening) :]
        return Turn(call.handle, self._decode(ids[:end]), self._messages(ids[:end])), partial

    def answer(self, reply: Reply, stops: frozenset[int]) -> Ids:
        """The reply's ids, its stop included."""
        ids = self._encode(reply.written(thinking=self._opening[0].rstrip().endswith("<think>")))
        if reply.finish == "length":
            return ids
        own = self._tokenizer.eos_token_id
        return np.append(ids, np.int32(own if own in stops else min(stops)))

    def _messages(self, ids: Ids) -> tuple[tuple[str, str], ...]:
        starts = np.flatnonzero(ids == self._tokenizer.convert_tokens_to_ids("<|im_start|>"))
        if not len(starts):
            return (("user", self._decode(ids)),)
        texts = [self._decode(part) for part in np.split(ids, starts)[1:]]
        split = (t.removeprefix("<|im_start|>").partition("\n") for t in texts)
        return tuple((role, text.rstrip("\n").removesuffix("<|im_end|>")) for role, _, text in split)

    def _encode(self, text: str) -> Ids:
        return np.array(self._tokenizer.encode(text, add_special_tokens=False), np.int32)

    def _decode(self, ids: Ids) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
