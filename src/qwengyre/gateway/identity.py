"""Which thread of a harness asks: by what its requests say, else by what they look like.

The table is data: `DEFAULT` holds the headers that known harnesses send, which are unmistakable; a harness profile may
bring its own.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import orjson

from qwengyre.gateway.canon import Request

_LONGEST = 1024


@dataclass(frozen=True)
class Signals:
    """Places in a request: `header:NAME` or `body:KEY.KEY`, with `#KEY.KEY` for a key of JSON text found there.

    `thread`: the first one that a request has names the thread. `kept`: recorded with each call, as evidence for roles.
    `volatile`: patterns (multi-line) of what a harness changes from call to call without meaning; cut out of system
    messages before anything is compared or rendered.
    """

    thread: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    volatile: tuple[str, ...] = ()

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "Signals":
        """Of a harness profile's `signals`, as plain data; without any, what known harnesses send."""
        if not data:
            return DEFAULT
        places = (p for key in ("session", "thread", "sub_agent", "parent", "kind") for p in data.get(key, ()))
        return cls(tuple(data.get("thread", ())), tuple(dict.fromkeys((*places, *DEFAULT.kept))))

    def mark(self, request: Request, headers: Mapping[str, str]) -> Request:
        """The request with what it says of itself, its volatile parts gone."""
        places = dict.fromkeys((*self.thread, *self.kept))
        said = {place: text for place in places if (text := _find(place, request, headers))}
        thread = next((said[place] for place in self.thread if place in said), "")
        messages = request.messages
        if self.volatile:
            messages = tuple(replace(m, text=self._stable(m.text)) if m.role == "system" else m for m in messages)
        return replace(request, messages=messages, signals=said, thread=thread)

    def _stable(self, text: str) -> str:
        for pattern in self.volatile:
            text = re.sub(pattern, "", text, flags=re.MULTILINE)
        return text


def _find(place: str, request: Request, headers: Mapping[str, str]) -> str:
    place, _, inner = place.partition("#")
    source, _, name = place.partition(":")
    value: Any = headers.get(name) if source == "header" else _walk(request.ignored, name)
    if inner:
        try:
            value = _walk(orjson.loads(value), inner) if isinstance(value, str) else None
        except orjson.JSONDecodeError:
            return ""
    if isinstance(value, dict | list):
        value = orjson.dumps(value).decode()
    return "" if value is None else str(value)[:_LONGEST]


def _walk(value: Any, path: str) -> Any:
    for key in path.split("."):
        value = cast("dict[str, Any]", value).get(key) if isinstance(value, Mapping) else None
    return value


DEFAULT = Signals(
    thread=("header:x-claude-code-agent-id", "header:thread-id", "header:x-session-id"),
    kept=(
        "header:x-claude-code-session-id",
        "header:x-claude-code-parent-agent-id",
        "header:x-claude-code-request-class",
        "header:x-openai-subagent",
        "header:x-codex-parent-thread-id",
        "header:x-codex-turn-metadata#request_kind",
        "header:x-parent-session-id",
    ),
)
