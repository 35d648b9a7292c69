"""Canonical requests and answers: what every dialect decodes to and encodes from. Wire noise ends here.

A canonical message keeps what a model could see (role, text, tool calls, reasoning) and nothing of the wire's form:
a string and its one-part list, null and missing content, `tools` absent, null and [] are the same value.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ToolCall:
    """`arguments` is the JSON text, as sampled (ours) or as the harness wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Message:
    """One message. `role`: system, user, assistant or tool; `call_id`: the tool call that a tool message answers."""

    role: str
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    reasoning: str = ""
    name: str = ""


@dataclass(frozen=True)
class Request:
    """What a harness asks. `max_tokens` 0: not said. `constrained`: a grammar or a forced tool choice was asked.

    `tools` are function declarations ({"type": "function", "function": {...}}). `parse_tools` is False when the harness
    forbids tool calls. `stops`: texts before which an answer ends. `ignored` holds the client's other wishes (sampling,
    above all), recorded and not followed. `raw` is the prompt of a protocol without messages, as text or ids.

    `wire` is what the dialect needs again to encode the answer. `cuts`: how many messages there are after each item of
    the protocol's growing list, -1 where a next item may still change the last message.
    """

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    max_tokens: int = 0
    stream: bool = False
    include_usage: bool = False
    constrained: bool = False
    parse_tools: bool = True
    stops: tuple[str, ...] = ()
    model: str = ""
    ignored: Mapping[str, Any] = field(default_factory=dict[str, Any])
    raw: str | tuple[int, ...] | None = None
    wire: Mapping[str, Any] = field(default_factory=dict[str, Any])
    cuts: tuple[int, ...] = ()
    signals: Mapping[str, str] = field(default_factory=dict[str, str])
    """Headers that say which thread of the harness asks, and why."""
    thread: str = ""
    """The thread that they name, "" if none does."""


@dataclass(frozen=True)
class Head:
    """What an answer has before it exists: its id, its time (Unix seconds) and the model's name."""

    id: str
    created: int
    model: str


@dataclass(frozen=True)
class Answer:
    """A complete answer. `finish`: stop, length or tool_calls; `stop`: the client's text that ended it. Token counts
    are true ones."""

    text: str
    calls: tuple[ToolCall, ...]
    reasoning: str
    finish: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    stop: str = ""


class Refusal(Exception):
    """A request that is not answered. `kind` (a key of `STATUS`) and `message` are put in the dialect's own words; so
    are, of a prompt that is too long, its `tokens` and the `window`."""

    def __init__(self, kind: str, message: str, param: str | None = None, *, tokens: int = 0, window: int = 0) -> None:
        super().__init__(message)
        self.kind, self.message, self.param = kind, message, param
        self.tokens, self.window = tokens, window

    @property
    def status(self) -> int:
        """The HTTP status, for errors known before the first byte of an answer."""
        return STATUS[self.kind]


STATUS = {
    "invalid": 400,
    "too_long": 400,
    "unauthorized": 401,
    "not_found": 404,
    "sealed": 409,
    "too_large": 413,
    "failed": 500,
}
