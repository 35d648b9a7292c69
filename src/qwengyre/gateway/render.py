"""Messages to token ids, ids to answers. Only what is new is rendered: stored ids are the truth of a path.

A renderer gives exact ids or nothing. `TemplateRenderer` serves any HF tokenizer with a chat template: the text of new
messages is what follows a short stand-in for the history when both are rendered, so its cost does not grow with the
history. What a template cannot append is refused (None) and the call becomes a branch. How a template would write an
earlier answer again (without its thinking, say) does not matter: that answer's own ids stay.

Text of harnesses never becomes a control token: inside message text and tool declarations each special token's text is
cut after its first character and the parts are encoded apart, so the ids decode to the same text and control nothing.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from qwengyre.errors import ConfigError
from qwengyre.gateway.canon import Message, Refusal, ToolCall
from qwengyre.gateway.parse import Delta, Parsed, Parser, Tools, parse
from qwengyre.gateway.standin import ANCHOR, ANCHORED, CUT, STANDIN, STUB, clean, cleaned, stand_in
from qwengyre.types import Ids, Kind

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


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

    def parse(self, output: Ids, *, tools: Tools | bool, stops: Sequence[str] = (), cut: bool = False) -> Parsed:
        """Text, tool calls (of `tools`) and reasoning of sampled ids, up to the first of the `stops`. `cut`: their
        limit ended them."""
        ...

    def listen(self, *, tools: Tools | bool) -> Callable[[int], list[Delta]]:
        """A listener of one output: it is given ids one by one and returns what they add."""
        ...

    def encode(self, text: str) -> Ids:
        """A text that its writer has put control tokens into."""
        ...

    def text(self, ids: Ids) -> str:
        """The text of ids, control tokens included."""
        ...


_SHORT, _REMEMBERED = 16, 256


class TemplateRenderer:
    """Renders with a tokenizer's own chat template. Raises ConfigError when there is none.

    `thinking`: "keep" leaves earlier reasoning where it was sampled, whatever the template does; "template" starts a
    branch where the template drops it.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerFast", *, thinking: Literal["keep", "template"] = "keep") -> None:
        if not getattr(tokenizer, "chat_template", None):
            name = tokenizer.name_or_path or "this tokenizer"
            raise ConfigError(f"{name} has no chat template: set model.chat_template to a jinja file")
        self._tokenizer, self._backend = tokenizer, tokenizer.backend_tokenizer
        self._tools: tuple[Tools, list[Any]] = ((), [])  # the last declarations, marked
        self._texts: dict[Any, str] = {}  # of short stand-ins
        added = [t for t in tokenizer.added_tokens_decoder.values() if len(t.content) > 1 and t.content.strip()]
        self._any_token = _pattern([t.content for t in added])
        self._special = _pattern([t.content for t in added if t.special])
        self._begins = re.compile("|".join(re.escape(t.content) for t in added) or r"(?!)")
        self._keep = thinking == "keep"
        _, _, self._close_text = self._text([STANDIN, ANCHORED], ()).rpartition(ANCHOR)
        self._close = self._encode(self._close_text)
        self._stop_ids = self._find_stops()
        opened = self._text([STANDIN], (), opened=True)[len(self._text([STANDIN], ())) :]
        self._thinking = opened.rstrip().endswith("<think>")
        self._digest = blake2b((str(tokenizer.chat_template) + str(len(tokenizer))).encode(), digest_size=8).hexdigest()
        self._late_system = self._takes_late_system()
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
        messages = clean([*messages[:1], *self._late(messages[1:])])
        try:
            whole = self._text(messages, tools, opened=True)
        except _template_errors() as error:
            raise Refusal("invalid", f"the model's chat template refuses these messages: {error}", "messages") from None
        return self._rendered(whole, self._pieces([], messages, tools, whole))

    def extend(self, previous: Message, last: int | None, messages: Sequence[Message], tools: Tools) -> Rendered | None:
        """See the protocol. A sampled turn cut by its length gets the close that it lacks."""
        if not self._appends or (previous.role == "system" and not self._late_system):
            return None
        before, messages, tools = stand_in(previous), clean(self._late(messages)), STUB if tools else ()
        try:
            base = self._tail(before, (), tools)
            rest = self._tail(before, messages, tools, opened=True)
            closed = last is None or (base.endswith(self._close_text) and self._keeps(previous, messages, tools))
            if not closed or not rest.startswith(base):
                return None
            rest = rest[len(base) :]
            rendered = self._rendered(rest, self._pieces(before, messages, tools, rest))
        except (_NotAppended, *_template_errors()):
            return None
        return rendered if last is None else self._closed(last, rendered)

    def parse(self, output: Ids, *, tools: Tools | bool, stops: Sequence[str] = (), cut: bool = False) -> Parsed:
        """See the protocol."""
        ended = len(output) > 0 and int(output[-1]) in self._stop_ids
        ids = (output[:-1] if ended else output).tolist()
        raw = self.text(ids)
        at, stop = min(((raw.find(s), s) for s in stops if s in raw), default=(len(raw), ""))
        parsed = parse(raw[:at], tools=tools, thinking=self._thinking, cut=cut and not stop)
        if not stop:
            return parsed
        kept = bisect_left(range(len(ids)), True, key=lambda n: self.text(ids[:n]).startswith(raw[: at + len(stop)]))
        return replace(parsed, stop=stop, kept=kept)

    def listen(self, *, tools: Tools | bool) -> Callable[[int], list[Delta]]:
        """See the protocol."""
        from tokenizers.decoders import DecodeStream

        parser, decoder = Parser(tools=tools, thinking=self._thinking), DecodeStream(skip_special_tokens=False)

        def heard(token: int) -> list[Delta]:
            text = None if token in self._stop_ids else decoder.step(self._backend, token)
            return parser.feed(text) if text else []

        return heard

    def encode(self, text: str) -> Ids:
        """See the protocol."""
        return np.array(self._backend.encode(text, add_special_tokens=False).ids, np.int32)

    def text(self, ids: "Ids | list[int]") -> str:
        """See the protocol."""
        return self._backend.decode(ids if isinstance(ids, list) else ids.tolist(), skip_special_tokens=False)

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
            if len(new) == 1:
                opened = self._opened(stand_in(new[0]), tools)
                if whole.endswith(opened):
                    return [(whole.removesuffix(opened), "message", 1), (opened, "open", 1)][: 1 + bool(opened)]
            while start < len(new):
                end, text = self._group(context, new[start:], tools)
                pieces.append((text, "message", start + end))
                start, context = start + end, stand_in(new[start + end - 1])
                tools = STUB if tools else ()
            opened = self._opened(context, tools)
        except (_NotAppended, *_template_errors()):
            return [(whole, "message", len(new))]
        if opened:
            pieces.append((opened, "open", len(new)))
        return pieces if "".join(t for t, _, _ in pieces) == whole else [(whole, "message", len(new))]

    def _group(self, context: list[Message], new: Sequence[Message], tools: Tools) -> tuple[int, str]:
        """The least number of messages whose text does not change when the next one is appended, and that text."""
        base = len(self._tail(context, (), tools)) if context else 0
        for end in range(1, len(new)):
            try:
                text = self._tail(context, new[:end], tools)
            except _template_errors():
                continue  # no conversation by itself, a system message alone, say
            if self._tail(context, new[: end + 1], tools).startswith(text):
                return end, text[base:]
        return len(new), self._tail(context, new, tools)[base:]

    def _tail(self, before: list[Message], new: Sequence[Message], tools: Tools, *, opened: bool = False) -> str:
        """The text of `before` and `new` from the anchor in `before` on (all of it without one).

        Raises _NotAppended when the template writes what stands before the anchored answer otherwise than it did."""
        text = self._text([*before, *new], tools, opened=opened)
        if len(before) < 2:
            base = self._text(before, tools) if before and (new or opened) else ""
            if not text.startswith(base):
                raise _NotAppended
            return text
        head, found, tail = text.rpartition(ANCHOR)
        if not found or not head.startswith(self._text(before[:1], tools)):
            raise _NotAppended
        return tail

    def _opened(self, context: list[Message], tools: Tools) -> str:
        """What opens the assistant's turn."""
        return self._tail(context, (), tools, opened=True)[len(self._tail(context, (), tools)) :]

    def _late(self, messages: Sequence[Message]) -> list[Message]:
        """System messages after the first message are a user's, where the template allows one at the beginning only."""
        if self._late_system:
            return list(messages)
        return [replace(m, role="user") if m.role == "system" else m for m in messages]

    def _takes_late_system(self) -> bool:
        try:
            self._text([STANDIN, ANCHORED, Message("system", "x")], ())
            self._text([Message("system", "x"), Message("system", "x"), STANDIN], ())
        except _template_errors():
            return False
        return True

    def _keeps(self, previous: Message, messages: Sequence[Message], tools: Tools) -> bool:
        """Whether the reasoning of the answer before may stay where it is."""
        if self._keep or previous.role != "assistant":
            return True
        thought = replace(stand_in(previous)[-1], reasoning=CUT)
        return (CUT in self._text([STANDIN, thought], tools)) == (
            CUT in self._text([STANDIN, thought, *(replace(m, text="x") for m in messages)], tools)
        )

    def _text(self, messages: Sequence[Message], tools: Tools, *, opened: bool = False) -> str:
        if sum(len(m.text) for m in messages) > _SHORT or (tools and tools is not STUB):
            return self._render(messages, tools, opened=opened)
        key = (tuple(messages), bool(tools), opened)
        text = self._texts.get(key)
        if text is None:
            if len(self._texts) >= _REMEMBERED:
                self._texts.clear()
            text = self._texts[key] = self._render(messages, tools, opened=opened)
        return text

    def _render(self, messages: Sequence[Message], tools: Tools, *, opened: bool) -> str:
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
            declared = json.loads(self._marked(cleaned(json.dumps(list(tools), ensure_ascii=False)), "system"))
            self._tools = (tools, declared)
        return declared

    def _marked(self, text: str, role: str) -> str:
        """`text` with a cut after the first character of every added token's text. An assistant's own text keeps its
        ordinary added tokens (`<tool_call>`), which it may have sampled; nobody's keeps special ones."""
        pattern = self._special if role == "assistant" else self._any_token
        return pattern.sub(lambda found: found[1] + CUT, text) if pattern.search(text) else text

    def _encode(self, text: str) -> Ids:
        arrays = [
            np.array(encoded.ids, np.int32)
            for encoded in self._backend.encode_batch_fast([p for p in text.split(CUT) if p], add_special_tokens=False)
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
        plain = [STANDIN, Message("assistant", "ok"), Message("user", "go on")]
        asked = Message("assistant", calls=(ToolCall("c", "f", '{"a": "b"}'),))
        used = [STANDIN, asked, Message("tool", "r", call_id="c")]
        return self._extends(plain, ()) and self._extends(used, STUB)

    def _extends(self, talk: list[Message], tools: Tools) -> bool:
        try:
            whole = self.start(talk, tools)
        except Refusal:
            return True  # a template without tools, say: nothing was found against it
        more = self.extend(talk[-2], None, talk[-1:], tools)
        return more is not None and np.array_equal(more.ids, whole.ids[-len(more.ids) :])


class _NotAppended(Exception):
    """The template rewrites what stands before."""


def _pattern(tokens: list[str]) -> re.Pattern[str]:
    """Finds the first character of each of `tokens`, overlapping ones too."""
    return re.compile(f"(?={'|'.join(re.escape(t) for t in tokens)})(.)", re.DOTALL) if tokens else re.compile(r"(?!)")


def _template_errors() -> tuple[type[Exception], ...]:
    from jinja2.exceptions import TemplateError

    return (TemplateError, TypeError, KeyError)
