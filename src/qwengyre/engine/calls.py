"""What passes between the HTTP surface and an engine: one call in, one completion out, and the ways to refuse.

Torch-free, so that engines without torch (emulated ones, a user's) serve the same surface.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from qwengyre.types import Floats, Ids


@dataclass(frozen=True)
class Call:
    """One token-in, token-out call. `handle` names the execution: a hint for prefix reuse, "" for none.

    `temperature` 0 is greedy. Equal `seed`, prompt and weights give equal ids, whatever else the engine runs.
    """

    request_id: str
    token_ids: Ids
    max_tokens: int
    temperature: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    handle: str = ""
    progress: Callable[[int], None] | None = field(default=None, compare=False, repr=False)
    """Hears each token at once, in the engine's own thread."""


class Span(NamedTuple):
    """Output tokens [start, end) sampled under weight set `version`. `kv_version` is the oldest weight set that made
    any of the keys and values they were conditioned on (-1: the same); older only where KV is kept on publish."""

    version: int
    start: int
    end: int
    kv_version: int = -1


@dataclass(frozen=True)
class Completion:
    """The end of a call, told once. `token_ids` hold the stop token; spans cover every token.

    `logprobs[i]` = fp32 log-softmax(logits / temperature) of `token_ids[i]` (temperature 1 for greedy calls).
    `finish_reason` is stop, length or abort; `stop_reason` is the id that stopped the call.
    """

    request_id: str
    token_ids: Ids
    logprobs: Floats
    finish_reason: str
    stop_reason: int | None
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Health:
    """`status` is open, closed, asleep or `failed: <why>`. `window` in tokens, `calls` running or queued."""

    status: str
    engine: str
    version: int
    calls: int
    window: int


class EngineClosedError(Exception):
    """The engine takes no calls now: queue the call and follow the routes (409)."""


class RefusedCallError(ValueError):
    """A call that can never be served as sent (400). `kind` is too_long or invalid."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class TokenEngine(Protocol):
    """What the HTTP surface needs. `generate` raises EngineClosedError, RefusedCallError or EngineError; its
    cancellation ends the call."""

    async def generate(self, call: Call) -> Completion: ...
    async def abort(self, request_ids: list[str] | None = None) -> int: ...
    async def open(self) -> None: ...
    async def close(self) -> None: ...
    async def sleep(self) -> None: ...
    async def wake(self) -> None: ...
    def health(self) -> Health: ...
