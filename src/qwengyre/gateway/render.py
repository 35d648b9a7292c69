"""Messages to token ids, ids to answers. Only what is new is rendered: stored ids are the truth of a path.

A renderer gives exact ids or nothing. `TemplateRenderer` serves any HF tokenizer with a chat template: the text of new
messages is the difference between rendering a short stand-in for the history with and without them, so its cost does
not grow with the history. What a template cannot append is refused (None) and the call becomes a branch.

Text of harnesses never becomes a control token: inside message text and tool declarations each special token's text is
cut after its first character and the parts are encoded apart, so the ids decode to the same text and control nothing.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from qwengyre.errors import ConfigError
from qwengyre.gateway.canon import Message, Refusal, ToolCall
from qwengyre.gateway.parse import Parsed, parse
from qwengyre.types import Ids, Kind

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Tools = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Piece:
    """A run of rendered ids that becomes one row. `step`: message, close (ends a sampled turn) or open (begins one).

    `messages` = how many of the new messages are rendered up to the end of this piece.
    """

    kind: Kind
    step: str
    length: int
    messages: int


@dataclass(frozen=True)
class Rendered:
    """Ids of new messages and of what opens the assistant's turn; the pieces cover them."""

    ids: Ids
    pieces: tuple[Piece, ...]


class Renderer(Protocol):
    """How a model family writes conversations. Pure and thread-safe."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end an assistant's turn."""
        ...

    @property
    def digest(self) -> str:
        """Names tokenizer and template; recorded in journals."""
        ...

    def start(self, messages: Sequence[Message], tools: Tools) -> Rendered:
        """A whole conversation, from nothing. Raises Refusal("invalid") when the template refuses it."""
        ...

    def extend(self, previous: Message, last: int | None, messages: Sequence[Message], tools: Tools) -> Rendered | None:
        """What comes after a path that ends with `previous`. `last`: the last id of a sampled turn that is not closed
        yet, None where the path is. None: the template cannot append these messages; render the whole instead."""
        ...

    def parse(self, output: Ids, *, tools: bool) -> Parsed:
        """Text, tool calls and reasoning of sampled ids."""
        ...


_CUT = "\ufdd0"  # a Unicode non-character: where text is cut before it is encoded
_SENTINEL = "sentinel"
_STANDIN = Message("user", "x")


class TemplateRenderer:
    """Renders with a tokenizer's own chat template. Raises ConfigError when there is none."""

    def __init__(self, tokenizer: "PreTrainedTokenizerFast") -> None:
        if not getattr(tokenizer, "chat_template", None):
            name = tokenizer.name_or_path or "this tokenizer"
            raise ConfigError(f"{name} has no chat template: set model.chat_template to a jinja file")
        self._tokenizer, self._backend = tokenizer, tokenizer.backend_tokenizer
        self._tools: tuple[Tools, list[Any]] = ((), [])  # the last declarations, marked
        added = [t for t in tokenizer.added_tokens_decoder.values() if len(t.content) > 1 and t.content.strip()]
        self._any_token = _pattern([t.content for t in added])
        self._special = _pattern([t.content for t in added if t.special])
        self._begins = re.compile("|".join(re.escape(t.content) for t in added) or r"(?!)")
        _, _, self._close_text = self._text([_STANDIN, Message("assistant", _SENTINEL)], ()).rpartition(_SENTINEL)
        self._close = self._encode(self._close_text)
        self._stop_ids = self._find_stops()
        opened = self._text([_STANDIN], (), opened=True)[len(self._text([_STANDIN], ())) :]
        self._thinking = opened.rstrip().endswith("<think>")
        self._digest = blake2b((str(tokenizer.chat_template) + str(len(tokenizer))).encode(), digest_size=8).hexdigest()
        self._appends = self._conforms()

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The turn's end, and the tokenizer's end of sequence."""
        return self._stop_ids

    @property
    def digest(self) -> str:
        """Of the template and the vocabulary's size."""
        return self._digest

    def start(self, messages: Sequence[Message], tools: Tools) -> Rendered:
        """See the protocol."""
        try:
            whole = self._text(messages, tools, opened=True)
        except _template_errors() as error:
            raise Refusal("invalid", f"the model's chat template refuses these messages: {error}", "messages") from None
        return self._rendered(whole, self._pieces([], messages, tools, whole))

    def extend(self, previous: Message, last: int | None, messages: Sequence[Message], tools: Tools) -> Rendered | None:
        """See the protocol. A sampled turn cut by its length gets the close that it lacks."""
        if not self._appends:
            return None
        before = _stand_in(previous)
        try:
            base = self._text(before, tools)
            whole = self._text([*before, *messages], tools, opened=True)
        except _template_errors():
            return None
        if not whole.startswith(base) or (last is not None and not base.endswith(self._close_text)):
            return None
        rest = whole[len(base) :]
        rendered = self._rendered(rest, self._pieces(before, messages, tools, rest))
        return rendered if last is None else self._closed(last, rendered)

    def parse(self, output: Ids, *, tools: bool) -> Parsed:
        """See the protocol."""
        ended = len(output) > 0 and int(output[-1]) in self._stop_ids
        ids = (output[:-1] if ended else output).tolist()
        return parse(self._backend.decode(ids, skip_special_tokens=False), tools=tools, thinking=self._thinking)

    def _closed(self, last: int, rendered: Rendered) -> Rendered:
        close = self._close[1:] if len(self._close) and last == self._close[0] else self._close
        if not len(close):
            return rendered
        piece = Piece(Kind.GLUE, "close", len(close), 0)
        return Rendered(np.concatenate([close, rendered.ids]), (piece, *rendered.pieces))

    def _rendered(self, whole: str, texts: list[tuple[str, str, int]]) -> Rendered:
        """Encode piece by piece; a piece that does not begin with an added token joins the one before it, because
        only there is the cut certain not to change the ids."""
        joined: list[tuple[str, Kind, str, int]] = []
        for text, step, count in texts:
            kind = Kind.GLUE if step == "open" else Kind.CONTEXT
            if joined and not self._begins.match(text):
                before, kind, _, _ = joined.pop()
                text = before + text
            joined.append((text, kind, step, count))
        assert "".join(row[0] for row in joined) == whole
        arrays = [self._encode(row[0]) for row in joined]
        pieces = tuple(Piece(r[1], r[2], len(ids), r[3]) for ids, r in zip(arrays, joined, strict=True))
        return Rendered(np.concatenate(arrays) if arrays else np.empty(0, np.int32), pieces)

    def _pieces(
        self, before: list[Message], new: Sequence[Message], tools: Tools, whole: str
    ) -> list[tuple[str, str, int]]:
        """`whole` (the text of `new` after `before`) as (text, step, messages so far), one piece a message where the
        template is append-only there."""
        pieces: list[tuple[str, str, int]] = []
        start, context = 0, before
        try:
            while start < len(new):
                end, text = self._group(context, new[start:], tools)
                pieces.append((text, "message", start + end))
                start, context = start + end, _stand_in(new[start + end - 1])
            opened = self._text(context, tools, opened=True)[len(self._text(context, tools)) :]
        except _template_errors():
            return [(whole, "message", len(new))]
        if opened:
            pieces.append((opened, "open", len(new)))
        return pieces if "".join(t for t, _, _ in pieces) == whole else [(whole, "message", len(new))]

    def _group(self, context: list[Message], new: Sequence[Message], tools: Tools) -> tuple[int, str]:
        """The least number of messages whose text does not change when the next one is appended, and that text."""
        base = len(self._text(context, tools)) if context else 0
        for end in range(1, len(new)):
            try:
                text = self._text([*context, *new[:end]], tools)
            except _template_errors():
                continue  # no conversation by itself, a system message alone, say
            if self._text([*context, *new[: end + 1]], tools).startswith(text):
                return end, text[base:]
        return len(new), self._text([*context, *new], tools)[base:]

    def _text(self, messages: Sequence[Message], tools: Tools, *, opened: bool = False) -> str:
        text = self._tokenizer.apply_chat_template(
            [self._wire(m) for m in messages],
            tools=self._declared(tools),
            tokenize=False,
            add_generation_prompt=opened,
        )
        assert isinstance(text, str)
        return text

    def _wire(self, message: Message) -> dict[str, Any]:
        """The message as templates expect it, cut marks in place."""
        role = message.role
        wire: dict[str, Any] = {"role": role, "content": self._marked(message.text, role)}
        if message.calls:
            wire["tool_calls"] = [self._wire_call(call) for call in message.calls]
        optional = {"tool_call_id": message.call_id, "name": message.name, "reasoning_content": message.reasoning}
        return wire | {k: self._marked(v, role) for k, v in optional.items() if v}

    def _wire_call(self, call: ToolCall) -> dict[str, Any]:
        arguments: Any = self._marked(call.arguments, "assistant")
        try:
            parsed = json.loads(arguments)
            arguments = parsed if isinstance(parsed, dict) else arguments
        except ValueError:
            pass  # a harness may echo broken JSON: it is rendered as it stands
        function = {"name": self._marked(call.name, "assistant"), "arguments": arguments}
        return {"id": call.id, "type": "function", "function": function}

    def _declared(self, tools: Tools) -> list[Any] | None:
        if not tools:
            return None
        last, declared = self._tools
        if last != tools:
            declared = json.loads(self._marked(json.dumps(list(tools), ensure_ascii=False), "system"))
            self._tools = (tools, declared)
        return declared

    def _marked(self, text: str, role: str) -> str:
        """`text` with a cut after the first character of every added token's text. An assistant's own text keeps its
        ordinary added tokens (`<tool_call>`), which it may have sampled; nobody's keeps special ones."""
        pattern = self._special if role == "assistant" else self._any_token
        text = text.replace(_CUT, "\ufffd")
        return pattern.sub(lambda found: found[1] + _CUT, text) if pattern.search(text) else text

    def _encode(self, text: str) -> Ids:
        arrays = [
            np.array(self._backend.encode(part, add_special_tokens=False).ids, np.int32)
            for part in text.split(_CUT)
            if part
        ]
        return np.concatenate(arrays) if arrays else np.empty(0, np.int32)

    def _find_stops(self) -> tuple[int, ...]:
        found = self._begins.match(self._close_text)
        stops = {int(self._close[0])} if found else set()
        if isinstance(end := self._tokenizer.eos_token_id, int):
            stops.add(end)
        if not stops:
            raise ConfigError(
                f"{self._tokenizer.name_or_path}: neither its chat template nor its tokenizer ends a turn"
            )
        return tuple(sorted(stops))

    def _conforms(self) -> bool:
        """Whether extending gives the ids of a whole render, tried once on a small conversation."""
        self._appends = True
        plain = [_STANDIN, Message("assistant", "ok"), Message("user", "go on")]
        asked = Message("assistant", calls=(ToolCall("c", "f", '{"a": "b"}'),))
        tools = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}]
        used = [_STANDIN, asked, Message("tool", "r", call_id="c")]
        return self._extends(plain, ()) and self._extends(used, tools)

    def _extends(self, talk: list[Message], tools: Tools) -> bool:
        try:
            whole, head = self.start(talk, tools), self.start(talk[:-1], tools)
        except Refusal:
            return True  # a template without tools, say: nothing was found against it
        head_ids = head.ids[: sum(p.length for p in head.pieces if p.step == "message")]
        more = self.extend(talk[-2], None, talk[-1:], tools)
        return more is not None and np.array_equal(np.concatenate([head_ids, more.ids]), whole.ids)


def _stand_in(previous: Message) -> list[Message]:
    """A short history that ends as one ending with `previous` would: its text and reasoning do not matter."""
    if previous.role in ("system", "user"):
        return [replace(previous, text="x")]
    return [_STANDIN, replace(previous, text="x", reasoning="")]


def _pattern(tokens: list[str]) -> re.Pattern[str]:
    """Finds the first character of each of `tokens`, overlapping ones too."""
    return re.compile(f"(?={'|'.join(re.escape(t) for t in tokens)})(.)", re.DOTALL) if tokens else re.compile(r"(?!)")


def _template_errors() -> tuple[type[Exception], ...]:
    from jinja2.exceptions import TemplateError

    return (TemplateError, TypeError, KeyError)
