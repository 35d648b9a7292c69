"""Whether a tool call that comes back is the one that we sent. Harnesses re-serialise, tidy and rename; a change of
meaning is a change.

Always the same: another order of keys, escapes, blanks and number forms of JSON. What single harnesses do besides is
data, from their profiles.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import orjson

from qwengyre.gateway.canon import ToolCall

_BLANKS = re.compile(r"[ \t\r]+(?=\n|\Z)")
ANY = "*"


@dataclass(frozen=True)
class Edits:
    """What harnesses do to tool calls. `renamed`: the name that comes back -> the one that was sent, or `*` where name
    and arguments say nothing any more. `cut`: (tool, argument, pattern) of what may be missing. `fills`: an empty,
    false or null argument is added or left out. `trims`: blanks at line ends go."""

    renamed: Mapping[str, str] = field(default_factory=dict[str, str])
    cut: tuple[tuple[str, str, str], ...] = ()
    fills: bool = False
    trims: bool = False

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "Edits":
        """Of plain data under the same names."""
        cut = tuple((str(tool), str(name), str(pattern)) for tool, name, pattern in data.get("cut", ()))
        fills, trims = bool(data.get("fills", False)), bool(data.get("trims", False))
        return cls(dict(data.get("renamed", {})), cut, fills, trims)


NONE = Edits()
"""A harness that says nothing of what it does: every other value is a change."""


def same_calls(ours: Sequence[ToolCall], theirs: Sequence[ToolCall], edits: Edits) -> bool:
    """Whether `theirs` are `ours`, one by one, by id and by what they mean."""
    return len(ours) == len(theirs) and all(_same(o, t, edits) for o, t in zip(ours, theirs, strict=True))


def same_text(ours: str, theirs: str) -> bool:
    """Whether a text that comes back with tool calls is ours, or was left out."""
    theirs = _BLANKS.sub("", theirs).strip()
    return not theirs or theirs == _BLANKS.sub("", ours).strip()


def values(calls: Sequence[ToolCall]) -> bytes:
    """Equal for calls of equal ids, names and values."""
    return plain([[c.id, c.name, _value(c.arguments)] for c in calls])


def plain(value: Any) -> bytes:
    """JSON with sorted keys."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def _same(ours: ToolCall, theirs: ToolCall, edits: Edits) -> bool:
    if ours.id != theirs.id:
        return False
    if ours == theirs:
        return True
    sent = edits.renamed.get(theirs.name, theirs.name) if ours.name != theirs.name else ours.name
    if sent == ANY:
        return True
    if sent != ours.name:
        return False
    return plain(_tidy(ours, edits)) == plain(_tidy(theirs, edits))  # not ==: true is not 1


def _tidy(call: ToolCall, edits: Edits) -> Any:
    value = _value(call.arguments)
    if not isinstance(value, dict):
        return value
    arguments = dict(cast("dict[str, Any]", value))
    for tool, name, pattern in edits.cut:
        if call.name == tool and isinstance(arguments.get(name), str):
            arguments[name] = re.sub(pattern, "", arguments[name])
    return _settle(arguments, edits)


def _settle(value: Any, edits: Edits) -> Any:
    """Without blanks at line ends and without what is empty, where the harness changes these."""
    if isinstance(value, str):
        return _BLANKS.sub("", value) if edits.trims else value
    if isinstance(value, list):
        return [_settle(v, edits) for v in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    inner = {k: _settle(v, edits) for k, v in cast("dict[str, Any]", value).items()}
    return {k: v for k, v in inner.items() if not _empty(v)} if edits.fills else inner


def _empty(value: Any) -> bool:
    return value is None or value is False or value in ("", [], {})


def _value(arguments: str) -> Any:
    """The value of the JSON text, or the text where it is none. 5.0 and 5 are one value; true and 1 are two."""
    try:
        return _settled(orjson.loads(arguments)) if arguments else {}
    except orjson.JSONDecodeError:
        return arguments


def _settled(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _settled(v) for k, v in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_settled(v) for v in cast("list[Any]", value)]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value
