"""From a model's output text to reasoning, text and tool calls, whole or as it comes. Pure; what is malformed stays
text.

Reasoning is what stands before `</think>`, when the output opens with `<think>` or the generation prompt has opened it.
A tool call is a block `<tool_call>...</tool_call>`: a JSON object with name and arguments, or
`<function=NAME>` with `<parameter=KEY>` values. A block that the output's limit cuts off is nothing: no text, no call.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, NoReturn, cast

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_THINK, _THOUGHT = "<think>", "</think>"
_FUNCTION = re.compile(r"\s*<function=([^>\s]+)>(.*?)</function>\s*</tool_call>", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^>]+)>\n?(.*?)\n?</parameter>\s*", re.DOTALL)
Tools = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Parsed:
    """`raw` is the whole text, the end of the turn stripped; `calls` are (name, arguments as JSON text). `stop`: the
    client's text that ended it, and `kept` the ids up to it."""

    raw: str
    text: str
    calls: tuple[tuple[str, str], ...] = ()
    reasoning: str = ""
    stop: str = ""
    kept: int = 0


class Delta(NamedTuple):
    """More of the reasoning or of the text, or a whole call (`name`, and its arguments in `text`)."""

    kind: Literal["reasoning", "text", "call"]
    text: str
    name: str = ""


def parse(raw: str, *, tools: Tools | bool, thinking: bool = False, cut: bool = False) -> Parsed:
    """Split an output. `tools`: look for tool calls, of these declarations; `thinking`: the generation prompt opened a
    reasoning block; `cut`: the output's limit ended it."""
    parser = Parser(tools=tools, thinking=thinking)
    deltas = [*parser.feed(raw), *parser.close(cut=cut)]
    said = {kind: "".join(d.text for d in deltas if d.kind == kind) for kind in ("reasoning", "text")}
    calls = tuple((d.name, d.text) for d in deltas if d.kind == "call")
    return Parsed(raw, said["text"], calls, said["reasoning"])


class Parser:
    """An output as it comes: `feed` pieces, then `close`. However it is cut into pieces, the deltas add up to the same;
    they lag behind while a piece could still become markup."""

    def __init__(self, *, tools: Tools | bool, thinking: bool = False) -> None:
        self._tools = tools
        self._buffer = ""
        self._state: Literal["start", "reasoning", "after", "text", "block"] = "start"
        self._thinking = thinking
        self._blanks = ""
        """Blanks that are only said if something follows."""
        self._said = self._called = False
        """Whether the part that grows has begun; whether there was a call."""
        self._closes = 0

    def feed(self, piece: str) -> list[Delta]:
        """What the piece adds."""
        self._buffer += piece
        return self._advance()

    def close(self, *, cut: bool = False) -> list[Delta]:
        """The rest."""
        deltas: list[Delta] = []
        if self._state == "start":
            self._begin()
        if self._state == "reasoning":
            deltas += self._say("reasoning", self._buffer)
        elif self._state != "block":
            deltas += self._text(self._buffer)
        elif not cut:
            deltas += self._malformed()
        if self._blanks and not self._called and self._state in ("text", "block"):
            deltas.append(Delta("text", self._blanks))
        return deltas

    def _advance(self) -> list[Delta]:
        deltas: list[Delta] = []
        while True:
            before = (self._state, len(self._buffer))
            deltas += getattr(self, f"_in_{self._state}")()
            if (self._state, len(self._buffer)) == before:
                return deltas

    def _in_start(self) -> list[Delta]:
        begun = self._buffer.lstrip()
        if not begun or (len(begun) < len(_THINK) and _THINK.startswith(begun)):
            return []
        self._begin()
        return []

    def _begin(self) -> None:
        begun = self._buffer.lstrip()
        if begun.startswith(_THINK):
            self._buffer, self._state = begun.removeprefix(_THINK), "reasoning"
        else:
            self._state = "reasoning" if self._thinking else "text"

    def _in_reasoning(self) -> list[Delta]:
        said, found = self._until(_THOUGHT)
        deltas = self._say("reasoning", said)
        if found:
            self._state, self._blanks, self._said = "after", "", False
        return deltas

    def _in_after(self) -> list[Delta]:
        self._buffer = self._buffer.lstrip("\n")
        if self._buffer:
            self._state = "text"
        return []

    def _in_text(self) -> list[Delta]:
        if not self._tools:
            said, self._buffer = self._buffer, ""
            return self._text(said)
        said, found = self._until(_OPEN)
        if found:
            self._state, self._closes = "block", 0
        return self._text(said)

    def _in_block(self) -> list[Delta]:
        closes = self._buffer.count(_CLOSE)
        if closes == self._closes:
            return []
        self._closes = closes
        call = _call(self._buffer, self._tools)
        if call is None:
            return []
        name, arguments, end = call
        self._buffer, self._state, self._called = self._buffer[end:], "text", True
        return [Delta("call", arguments, name)]

    def _malformed(self) -> list[Delta]:
        """A block that never became a call is text, and what follows its opening is looked at anew."""
        deltas = self._text(_OPEN)
        self._state = "text"
        deltas += self._advance()
        if self._state == "block":
            return deltas + self._malformed()
        deltas += self._text(self._buffer)
        self._buffer = ""
        return deltas

    def _until(self, mark: str) -> tuple[str, bool]:
        """Take what stands before the mark, or may be said though the mark has not come."""
        before, found, after = self._buffer.partition(mark)
        if found:
            self._buffer = after
            return before, True
        held = next((n for n in range(min(len(mark) - 1, len(before)), 0, -1) if mark.startswith(before[-n:])), 0)
        self._buffer = before[len(before) - held :]
        return before[: len(before) - held], False

    def _say(self, kind: Literal["reasoning", "text"], text: str) -> list[Delta]:
        """Blanks around reasoning, and after text, wait for what follows."""
        text = self._blanks + text
        if not self._said and kind == "reasoning":
            text = text.lstrip()
        said = text.rstrip()
        self._blanks = text[len(said) :]
        self._said = self._said or bool(said)
        return [Delta(kind, said)] if said else []

    def _text(self, text: str) -> list[Delta]:
        return self._say("text", text)


def _call(block: str, tools: Tools | bool) -> tuple[str, str, int] | None:
    """One call's name, arguments and end, or None where the block is not exactly one well-formed call (yet)."""
    found = _FUNCTION.match(block)
    if found is not None:
        return _function(found, tools)
    start = len(block) - len(block.lstrip())
    try:
        value, end = _DECODER.raw_decode(block, start)
    except (ValueError, RecursionError):
        return None
    close = end + len(block[end:]) - len(block[end:].lstrip())
    if not block.startswith(_CLOSE, close) or not isinstance(value, dict):
        return None
    named = cast("dict[str, Any]", value)
    name, arguments = named.get("name"), named.get("arguments", {})
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    return _written(name, arguments, close + len(_CLOSE))


def _function(found: re.Match[str], tools: Tools | bool) -> tuple[str, str, int] | None:
    name, body, at = found[1], found[2], 0
    schema = _schema(name, tools)
    arguments: dict[str, Any] = {}
    while at < len(body) and (parameter := _PARAMETER.match(body, at)):
        arguments[parameter[1]] = _typed(parameter[2], schema.get(parameter[1]))
        at = parameter.end()
    return None if body[at:].strip() else _written(name, arguments, found.end())


def _schema(name: str, tools: Tools | bool) -> Mapping[str, Any]:
    declared = () if isinstance(tools, bool) else tools
    named = (tool["function"] for tool in declared if tool["function"]["name"] == name)
    parameters: Any = next(named, {}).get("parameters") or {}
    return parameters.get("properties") or {}


def _typed(text: str, schema: Any) -> Any:
    """The value of a parameter, which is written without quotes where it is a text."""
    kind = cast("dict[str, Any]", schema).get("type", "string") if isinstance(schema, dict) else "string"
    if kind == "string":
        return text
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError):
        return text


def _written(name: str, arguments: Any, end: int) -> tuple[str, str, int] | None:
    written = json.dumps(arguments, ensure_ascii=False)
    return (name, written, end) if _writable(name + written) else None


def _writable(text: str) -> bool:
    """False for half a surrogate pair, which JSON can escape and UTF-8 cannot hold."""
    return text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text)


def _no_constants(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


_DECODER: Any = json.JSONDecoder(parse_constant=_no_constants)
