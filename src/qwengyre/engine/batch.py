"""Continuous batching: which tokens of which calls run in the next forward pass. Synchronous, one thread.

A call is waiting or active. An active call has `computed` tokens with keys and values and `size` tokens known; a pass
takes one token of every call that decodes, and up to a chunk of tokens of calls that still prefill, so that a long
prompt never stalls the others for more than a chunk. A call whose last known token is computed gets its next token.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from qwengyre.engine.attention import DecodeRows, Plan, PrefillSpan, decode_mask, prefill_mask
from qwengyre.engine.calls import Call, Completion, Span
from qwengyre.engine.forward import Decoder
from qwengyre.engine.kv import LEAST_SHARED, KVShape, PrefixCache, Slab, common_prefix, prefix_key, row_class
from qwengyre.engine.sampling import sample
from qwengyre.errors import EngineError
from qwengyre.types import Ids

_CHUNK_WORK = 256 * 135_000_000  # parameters x tokens: about half a second of one CPU core
_LEAST_CHUNK, _LARGEST_CHUNK = 64, 1024


def chunk_tokens(parameters: int, device: torch.device) -> int:
    """Prompt tokens a pass: as many as take about half a second on a CPU core, in bounds; the most on other devices."""
    wanted = _CHUNK_WORK // parameters if device.type == "cpu" else _LARGEST_CHUNK
    return min(_LARGEST_CHUNK, max(_LEAST_CHUNK, wanted))


@dataclass(eq=False)
class Running:
    """A call on its way. `ids[:size]` = prompt and output; `known` = size when it was last admitted."""

    call: Call
    answer: Callable[[Completion], None]
    stops: frozenset[int]
    rng: random.Random
    ids: Ids
    size: int
    known: int = 0
    computed: int = 0
    slab: Slab | None = None
    row: int = 0
    strip: Tensor | None = None
    logprobs: list[float] = field(default_factory=list[float])
    versions: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """(version, first output token sampled under it), where the version changed."""
    key: bytes = b""

    def __post_init__(self) -> None:
        self.key = prefix_key(self.ids[: self.size])

    @property
    def spans(self) -> tuple[Span, ...]:
        """Runs of equal versions over the output."""
        edges = pairwise([*self.versions, (0, self.output)])
        return tuple(Span(version, start, end) for (version, start), (_, end) in edges)

    @property
    def output(self) -> int:
        """Tokens sampled so far."""
        return self.size - len(self.call.token_ids)

    @property
    def reserved(self) -> int:
        """KV tokens held."""
        return self.slab.tokens if self.slab else self.strip.shape[2] if self.strip is not None else 0

    def view(self, tokens: int) -> Tensor:
        """Keys and values of the first `tokens` computed tokens."""
        assert tokens <= self.computed
        if self.slab:
            return self.slab.view(self.row, tokens)
        assert self.strip is not None
        return self.strip[:, :, :tokens]


class Batch:
    """All calls of an engine. `counts` only grow: prefill_tokens, reused_tokens, decode_tokens, calls, aborted."""

    def __init__(
        self, decoder: Decoder, shape: KVShape, window: int, max_batch: int, kv_tokens: int, chunk: int
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.version = 0
        self._window = window
        self._decoder = decoder
        self._shape = shape
        self._max_batch = max_batch
        self._kv_tokens = kv_tokens
        self._chunk = chunk
        self._waiting: list[Running] = []
        self._active: list[Running] = []
        self._cache = PrefixCache()
        self._slabs: dict[int, Slab] = {}

    def __len__(self) -> int:
        return len(self._waiting) + len(self._active)

    @property
    def kv_used(self) -> int:
        """KV tokens reserved now, by calls and by cached prefixes."""
        return self._cache.tokens + sum(running.reserved for running in self._active)

    def submit(
        self, call: Call, rng: random.Random, stops: frozenset[int], answer: Callable[[Completion], None]
    ) -> None:
        """Queue a call; `answer` is called exactly once."""
        prompt = len(call.token_ids)
        ids = np.empty(prompt + call.max_tokens, np.int32)
        ids[:prompt] = call.token_ids
        self.counts["calls"] += 1
        self._waiting.append(Running(call, answer, stops, rng, ids, prompt))

    @torch.inference_mode()
    def abort(self, request_ids: Sequence[str] | None) -> int:
        """End calls (None: all) with what they have; returns how many."""
        wanted = None if request_ids is None else set(request_ids)
        ended = [r for r in (*self._active, *self._waiting) if wanted is None or r.call.request_id in wanted]
        for running in ended:
            self.counts["aborted"] += 1
            self._finish(running, "abort", None)
        return len(ended)

    @torch.inference_mode()
    def reload(self, version: int) -> None:
        """The weights have changed: forget all keys and values; live calls prefill prompt and output again."""
        self.version = version
        self._cache.clear()
        for running in self._active:
            self._release(running)
        self._waiting = self._active + self._waiting
        self._active = []

    def free(self) -> None:
        """Give back all KV memory. Only without calls."""
        assert not len(self)
        self._cache.clear()
        self._slabs.clear()

    @torch.inference_mode()
    def step(self) -> None:
        """One forward pass; every call whose tokens are all computed gets its next token."""
        self._admit()
        self._make_room()
        rows, decoding = self._plan_rows()
        spans, prefilling = self._plan_spans(len(decoding))
        if not decoding and not prefilling:
            return
        chosen = decoding + [running for running, _ in prefilling]
        takes = [1] * len(decoding) + [count for _, count in prefilling]
        logits, finished = self._forward(Plan(rows, spans), chosen, takes)
        for running, take in zip(chosen, takes, strict=True):
            self.counts["prefill_tokens"] += max(0, min(running.computed + take, running.known) - running.computed)
            running.computed += take
        if finished:
            self._sample(logits, finished)
        for running, _ in prefilling:
            if running.strip is not None and running.size - running.computed == 1:
                self._settle(running)

    def _forward(self, plan: Plan, chosen: list[Running], takes: list[int]) -> tuple[Tensor, list[Running]]:
        pieces = [r.ids[r.computed : r.computed + n] for r, n in zip(chosen, takes, strict=True)]
        starts = np.fromiter((r.computed for r in chosen), np.int64, len(chosen))
        counts = np.asarray(takes, np.int64)
        ends = counts.cumsum()
        positions = np.arange(ends[-1]) + np.repeat(starts - (ends - counts), counts)
        done = [i for i, r in enumerate(chosen) if r.computed + takes[i] == r.size]
        device = self._shape.device
        ids = torch.from_numpy(np.concatenate(pieces).astype(np.int64)).to(device)
        wanted = torch.from_numpy(ends[done] - 1).to(device)
        logits = self._decoder(ids, torch.from_numpy(positions).to(device), plan, wanted)
        return logits, [chosen[i] for i in done]

    def _sample(self, logits: Tensor, finished: list[Running]) -> None:
        device = logits.device
        temperatures = torch.tensor([running.call.temperature for running in finished], device=device)
        uniforms = torch.tensor([running.rng.random() for running in finished], device=device)
        ids, logprobs = sample(logits, temperatures, uniforms)
        if not bool(logprobs.isfinite().all()):
            raise EngineError(f"the model's output under version {self.version} is not finite: its weights are broken")
        self.counts["decode_tokens"] += len(finished)
        for running, token, logprob in zip(finished, ids.tolist(), logprobs.tolist(), strict=True):
            self._append(running, token, logprob)

    def _append(self, running: Running, token: int, logprob: float) -> None:
        at = running.output
        running.ids[running.size] = token
        running.size += 1
        running.logprobs.append(logprob)
        if not running.versions or running.versions[-1][0] != self.version:
            running.versions.append((self.version, at))
        if token in running.stops:
            self._finish(running, "stop", token)
        elif at + 1 == running.call.max_tokens:
            self._finish(running, "length", None)

    def _finish(self, running: Running, reason: str, stop: int | None) -> None:
        if running in self._waiting:
            self._waiting.remove(running)
        else:
            self._active.remove(running)
            self._keep(running)
            self._release(running)
        prompt = len(running.call.token_ids)
        running.answer(
            Completion(
                request_id=running.call.request_id,
                token_ids=running.ids[prompt : running.size].copy(),
                logprobs=np.asarray(running.logprobs, np.float32),
                finish_reason=reason,
                stop_reason=stop,
                spans=running.spans,
            )
        )

    # Places

    def _admit(self) -> None:
        for running in list(self._waiting):
            if len(self._active) >= self._max_batch:
                return
            shared, source = self._best_source(running)
            if self._worth_waiting(running, shared):
                continue
            if not self._place(running, shared, source):
                return
            self._waiting.remove(running)
            self._active.append(running)

    def _best_source(self, running: Running) -> tuple[int, Tensor | None]:
        """Longest computed prefix of a call, short of its last token (whose logits are needed), and where it is."""
        wanted = running.ids[: running.size - 1]
        if len(wanted) < LEAST_SHARED:
            return 0, None
        shared, source = self._cache.find(wanted)
        for other in self._active:
            if other.key == running.key and other.computed > shared:
                length = common_prefix(other.ids[: other.computed], wanted)
                if length >= max(LEAST_SHARED, shared + 1):
                    shared, source = length, other.view(length)
        return shared, source

    def _worth_waiting(self, running: Running, shared: int) -> bool:
        """Whether a call that is prefilling now will soon have a much longer common prefix."""
        wanted = running.ids[: running.size - 1]
        return any(
            other.key == running.key
            and other.computed < other.known
            and common_prefix(other.ids[: other.known], wanted) >= shared + LEAST_SHARED
            for other in self._active
        )

    def _place(self, running: Running, shared: int, source: Tensor | None) -> bool:
        decodes = running.size - shared == 1
        if not self._reserve(row_class(running.size + 1, self._window)):
            return False
        running.known, running.computed = running.size, shared
        self.counts["reused_tokens"] += shared
        if decodes:
            assert source is not None or shared == 0
            self._enter_slab(running, source[:, :, :shared] if source is not None else self._shape.strip(0))
            return True
        running.strip = self._shape.strip(running.size)
        if source is not None:
            running.strip[:, :, :shared].copy_(source[:, :, :shared])
        return True

    def _reserve(self, tokens: int) -> bool:
        """Evict resting prefixes until `tokens` more fit. False when calls hold too much."""
        while self.kv_used + tokens > self._kv_tokens:
            if not self._cache.evict():
                return False
        return True

    def _settle(self, running: Running) -> None:
        """A call that has prefilled moves from its strip to a row, where it decodes; without room it waits."""
        strip, running.strip = running.strip, None
        assert strip is not None
        if self._reserve(row_class(running.size + 1, self._window)):
            self._enter_slab(running, strip[:, :, : running.computed])
        else:
            self._back_to_queue(running)

    def _make_room(self) -> None:
        """Rows that are full move to the next class; without room the youngest calls go back to the queue."""
        for running in list(self._active):
            if running.slab is None or running.computed < running.slab.tokens:
                continue
            larger = row_class(running.computed + 1, self._window)
            while running in self._active and not self._reserve(larger - running.reserved):
                self._back_to_queue(self._active[-1])
            if running in self._active:
                contents = running.view(running.computed).clone()
                self._leave_slab(running)
                self._enter_slab(running, contents)

    def _back_to_queue(self, running: Running) -> None:
        self._active.remove(running)
        self._release(running)
        self._waiting.insert(0, running)

    def _enter_slab(self, running: Running, contents: Tensor) -> None:
        tokens = row_class(running.size + 1, self._window)
        slab = self._slabs.get(tokens) or self._slabs.setdefault(tokens, Slab(self._shape, tokens))
        running.slab, running.row = slab, len(slab.owners)
        slab.add(running, contents)

    def _leave_slab(self, running: Running) -> None:
        slab = running.slab
        assert slab is not None
        last = slab.owners[-1]
        assert isinstance(last, Running)
        mover = slab.remove(running.row, last.computed)
        if mover is not None:
            last.row = running.row
        if not slab.owners:
            del self._slabs[slab.tokens]
        running.slab = None

    def _release(self, running: Running) -> None:
        if running.slab is not None:
            self._leave_slab(running)
        running.strip, running.computed, running.known = None, 0, 0

    def _keep(self, running: Running) -> None:
        """Leave the keys and values of a finished call to later ones."""
        ids = running.ids[: running.computed].copy()
        if len(ids) >= LEAST_SHARED and not self._cache.holds(ids):
            self._cache.put(ids, running.view(running.computed).clone())

    # Plans

    def _plan_rows(self) -> tuple[tuple[DecodeRows, ...], list[Running]]:
        rows: list[DecodeRows] = []
        decoding: list[Running] = []
        for slab in self._slabs.values():
            owners = [owner for owner in slab.owners if isinstance(owner, Running)]
            positions = np.fromiter((owner.computed for owner in owners), np.int64, len(owners))
            longest = int(positions.max()) + 1
            ragged = longest != int(positions.min()) + 1
            slots = torch.from_numpy(positions + np.arange(len(owners)) * slab.tokens).to(self._shape.device)
            lengths = torch.from_numpy(positions + 1).to(self._shape.device)
            mask = decode_mask(lengths, longest) if ragged else None
            rows.append(DecodeRows(slab.views, len(decoding), len(owners), longest, slots, mask))
            decoding += owners
        return tuple(rows), decoding

    def _plan_spans(self, start: int) -> tuple[tuple[PrefillSpan, ...], list[tuple[Running, int]]]:
        spans: list[PrefillSpan] = []
        taken: list[tuple[Running, int]] = []
        for running, count in self._prefill_shares():
            assert running.strip is not None
            mask = prefill_mask(count, running.computed, self._shape.groups, self._shape.device)
            spans.append(PrefillSpan(running.strip, start, count, running.computed, mask))
            taken.append((running, count))
            start += count
        return tuple(spans), taken

    def _prefill_shares(self) -> Iterator[tuple[Running, int]]:
        """Who prefills how much: half a chunk is the oldest call's, the rest goes to the shortest first."""
        queue = [running for running in self._active if running.strip is not None]
        if not queue:
            return
        oldest, left = queue[0], self._chunk
        granted = dict.fromkeys(queue, 0)
        for running, most in [(oldest, self._chunk // 2), *((r, self._chunk) for r in sorted(queue, key=_remaining))]:
            share = min(left, most, _remaining(running) - granted[running])
            granted[running] += share
            left -= share
        yield from ((running, share) for running, share in granted.items() if share)


def _remaining(running: Running) -> int:
    return running.size - running.computed
