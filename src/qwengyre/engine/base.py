"""What a cell needs of an engine. Model calls never pass here: gateways reach them by HTTP at `url`.

The HTTP shape (vLLM's token-in, token-out endpoints):

POST /inference/v1/generate
    {"request_id": str, "token_ids": [int], "sampling_params": {"max_tokens": int, "temperature": float,
     "stop_token_ids": [int], "seed": int | null, "logprobs": 0}, "handle": str}
    `handle` names the execution: a hint for prefix reuse. An engine that keeps what it has seen says "kept": true in
    its answer; then a later call may hold "prefix": {"request_id": str, "length": int, "crc": int}: the prompt is the
    first `length` ids of that request's prompt and output (`crc`: CRC-32 of them as little-endian int32), and then
    `token_ids`, which may be empty. 400 with type "unknown_prefix": the full ids must be sent. The answer comes when
    the call is over:
    (with "stream": true, an engine that can answers application/x-ndjson: {"token_ids": [int]} as they are sampled,
    and that same object last)
    200 {"request_id", "engine": str, "choices": [{"index": 0, "token_ids": [int], "finish_reason":
         "stop" | "length" | "abort", "stop_reason": int | null, "logprobs": {"content": [{"token_id", "logprob"}]},
         "weight_versions": [{"version": str, "start": int, "end": int}]}]}
    A span may hold "kv_version": the oldest weight set that made keys and values its tokens were conditioned on, where
    those were kept across a publish.
    `token_ids` hold the stop token; spans are half-open and cover every output token. An aborted call answers 200
    with finish_reason "abort" and all tokens made so far, once. A client that disconnects aborts its call.
    409 {"error": {"type": "closed", "message"}}: the cell is leaving or training; queue the call and follow the routes.
    400 {"error": {"type": "too_long" | "invalid", "message"}}: prompt + max_tokens exceed the window, or bad input.
POST /abort_requests {"request_ids": [str]} (empty: all) -> 200 {"aborted": int}
POST /pause, /resume, /sleep, /wake_up -> 200 {}
GET /health -> 200 {"status", "engine", "version": str, "calls": int, "window": int}
"""

from collections.abc import Collection, Sequence
from typing import Any, Protocol, runtime_checkable

from qwengyre.types import KVBlock


class Engine(Protocol):
    """Life: start -> (open <-> closed -> asleep -> awake)* -> stop. All methods are idempotent."""

    @property
    def name(self) -> str:
        """Unique in the run: cell and incarnation, e.g. `cell0.1`; stamped on every stretch."""
        ...

    async def start(self) -> str:
        """Serve on loopback; returns the base URL. The engine starts closed, holding `version`."""
        ...

    async def open(self) -> None:
        """Take calls from now on. Raises EngineError while asleep."""
        ...

    async def close(self) -> None:
        """Answer new calls with 409 from now on; running calls go on."""
        ...

    async def abort(self, request_ids: list[str] | None = None) -> int:
        """End calls (None: all) with their partial output; returns how many were running or queued."""
        ...

    async def calls(self) -> int:
        """Calls running or queued now."""
        ...

    async def sleep(self) -> None:
        """Free KV (and, where weights are not shared, weights). Requires closed and zero calls."""
        ...

    async def wake(self) -> None:
        """Be ready to open again. Weights must be loaded (`load`) before `open`."""
        ...

    async def load(self, version: int, weights: Any = None) -> None:
        """From the next token on, generate with `weights` (None: the shared parameters, updated in place) and stamp
        `version`. Drops all cached prefixes; live calls re-prefill."""
        ...

    async def capacity(self) -> int:
        """C_e: executions this engine serves at once."""
        ...

    async def stats(self) -> dict[str, float]:
        """Counters since start: prefill_tokens, reused_tokens, decode_tokens, calls, aborted."""
        ...

    async def stop(self) -> None:
        """Abort everything, free the port."""
        ...


@runtime_checkable
class HandsOver(Protocol):
    """What an engine has besides, if keys and values can leave it and come to it. Without it calls prefill again.

    Handles name executions, as in a generate request. At the source: `export_kv` > `free_kv`. At the destination:
    `expect_kv`, before the source ends its calls > `import_kv`. `stats` has `prefill_rate` in tokens a second
    (0: unknown).
    """

    async def export_kv(self, handles: Collection[str]) -> tuple[KVBlock, ...]:
        """End the calls of these executions with their partial output, and pin what the engine has of them."""
        ...

    async def expect_kv(self, handles: Collection[str], limit_s: float) -> None:
        """Calls of these executions wait until `import_kv` names them, at most `limit_s` seconds; 0: no longer."""
        ...

    async def import_kv(self, blocks: Sequence[KVBlock], handles: Collection[str]) -> int:
        """Keep the blocks as prefixes, end the wait for `handles`; returns the tokens kept. Raises EngineError, keeping
        none, unless version, dtype, model and geometry are this engine's."""
        ...

    async def free_kv(self, ids: Collection[str], moved: bool) -> None:
        """Unpin blocks. Idempotent. `moved`: they are at another engine now."""
        ...
