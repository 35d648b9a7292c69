"""What a cell needs of an engine. Model calls never pass here: gateways reach them by HTTP at `url`.

The HTTP shape (vLLM's token-in, token-out endpoints):

POST /inference/v1/generate
    {"request_id": str, "token_ids": [int], "sampling_params": {"max_tokens": int, "temperature": float,
     "stop_token_ids": [int], "seed": int | null, "logprobs": 0}, "handle": str}
    `handle` names the execution: a hint for prefix reuse. The answer comes when the call is over:
    200 {"request_id", "engine": str, "choices": [{"index": 0, "token_ids": [int], "finish_reason":
         "stop" | "length" | "abort", "stop_reason": int | null, "logprobs": {"content": [{"token_id", "logprob"}]},
         "weight_versions": [{"version": str, "start": int, "end": int}]}]}
    `token_ids` hold the stop token; spans are half-open and cover every output token. An aborted call answers 200
    with finish_reason "abort" and all tokens made so far, once. A client that disconnects aborts its call.
    409 {"error": {"type": "closed", "message"}}: the cell is leaving or training; queue the call and follow the routes.
    400 {"error": {"type": "too_long" | "invalid", "message"}}: prompt + max_tokens exceed the window, or bad input.
POST /abort_requests {"request_ids": [str]} (empty: all) -> 200 {"aborted": int}
POST /pause, /resume, /sleep, /wake_up -> 200 {}
GET /health -> 200 {"status", "engine", "version": str, "calls": int, "window": int}
"""

from typing import Any, Protocol


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
