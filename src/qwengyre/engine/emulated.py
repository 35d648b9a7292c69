"""An engine without a model: it answers at a modelled speed, so that a whole system is put under load on one machine.

    seconds of a call = new prompt tokens / prefill_per_s + output tokens * (1 + alpha (b - 1)) / tokens_per_s

b = calls that decode at the same time. How much an execution says in a call is drawn once for it (`sigma_group` for its
group, `sigma_within` for itself), whatever the policy, the cell, or how often the call is interrupted. What it says is
noise: letters, each with log-probability -1. All seconds are divided by `time_scale`.

Needs no torch. `trainer.kind=emulated` is the other half.
"""

import asyncio
import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import numpy as np

from qwengyre.engine.calls import Call, Completion, EngineClosedError, Health, RefusedCallError, Span
from qwengyre.engine.server import EngineServer, build_app
from qwengyre.errors import EngineError
from qwengyre.types import Ids

LOGPROB = -1.0
_MIX = np.uint64(0x9E3779B97F4A7C15)
COUNTS = ("prefill_tokens", "reused_tokens", "decode_tokens", "calls", "aborted")


@dataclass(frozen=True)
class Speed:
    """`engine.args` of `engine.kind=emulated`. The call budget M is `rl.max_tokens` of the run.

    A call of an execution says share * M tokens, share = median * exp(sigma_group z + sigma_within z'), at most 1.
    """

    tokens_per_s: float = 50.0
    alpha: float = 0.0
    prefill_per_s: float = 5000.0
    max_tokens: int = 256
    median: float = 0.3
    sigma_group: float = 0.3
    sigma_within: float = 0.4
    time_scale: float = 1.0
    letters: Sequence[int] = (64, 90)
    """Token ids [low, high) that are said."""

    def rate(self, decoding: int) -> float:
        """Tokens a real second of each of so many calls."""
        return self.time_scale * self.tokens_per_s / (1 + self.alpha * max(0, decoding - 1))


@dataclass
class Running:
    """A call in work: `mark` is the progress of the engine at which it is over."""

    call: Call
    tokens: int
    finish: str
    done: asyncio.Future[Completion]
    begun: float = 0.0
    decoding: bool = False
    timer: asyncio.TimerHandle | None = None
    spans: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """(version, first token)."""


class EmulatedEngine:
    """An `Engine`; see `engine/base.py`. The first argument is the model that a cell shares: None."""

    needs_model = False

    def __init__(  # noqa: PLR0913 - all but the model are named
        self,
        model: object = None,
        *,
        name: str,
        eos_ids: tuple[int, ...],
        window: int,
        version: int = 0,
        seed: int = 0,
        executions: int = 64,
        **speed: Any,
    ) -> None:
        self._name, self._eos, self._window, self._version = name, eos_ids, window, version
        self._seed, self._executions = seed, executions
        try:
            self._speed = Speed(**speed)
        except TypeError as error:
            raise EngineError(f"engine.args of an emulated engine: {error}") from None
        self._status = "closed"
        self._calls: dict[str, Running] = {}
        self._progress, self._at, self._decoding = 0.0, 0.0, 0
        self._ends: list[tuple[float, int, Running]] = []
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None
        self._server = EngineServer(build_app(self, name))
        self.counts: dict[str, float] = dict.fromkeys(COUNTS, 0.0)

    # --- calls -------------------------------------------------------------------------------------------------------

    async def generate(self, call: Call) -> Completion:
        """See `TokenEngine`."""
        if self._status != "open":
            raise EngineClosedError(f"engine {self._name} is {self._status}")
        if call.max_tokens < 1:
            raise RefusedCallError("invalid", f"max_tokens is {call.max_tokens}: ask for at least 1")
        if len(call.token_ids) + call.max_tokens > self._window:
            raise RefusedCallError(
                "too_long", f"{len(call.token_ids)} + {call.max_tokens} tokens exceed {self._window}"
            )
        tokens, finish = self._length(call)
        loop = asyncio.get_running_loop()
        running = Running(call, tokens, finish, loop.create_future())
        self._calls[call.request_id] = running
        self.counts["calls"] += 1
        self.counts["prefill_tokens"] += len(call.token_ids)
        prefill_s = len(call.token_ids) / self._speed.prefill_per_s / self._speed.time_scale
        running.timer = loop.call_later(prefill_s, self._decode, running)
        try:
            return await running.done
        finally:
            self._drop(running)

    def _length(self, call: Call) -> tuple[int, str]:
        """(tokens left to say, how it ends). A call that goes on elsewhere has as much less budget as it said."""
        stops = {*call.stop_token_ids, *self._eos}
        if not stops.isdisjoint(range(*self._speed.letters)):
            found = np.flatnonzero(np.isin(self._noise(call, call.max_tokens), list(stops)))
            return (int(found[0]) + 1, "stop") if len(found) else (call.max_tokens, "length")
        if not stops:
            return call.max_tokens, "length"
        speed, own = self._speed, call.handle or call.request_id
        group = np.random.default_rng([self._seed, crc32(own.partition("-")[0].encode())]).standard_normal()
        mine = np.random.default_rng([self._seed, crc32(own.encode()), 1]).standard_normal()
        share = min(1.0, speed.median * float(np.exp(speed.sigma_group * group + speed.sigma_within * mine)))
        whole = max(2, round(share * speed.max_tokens))
        said = max(0, speed.max_tokens - call.max_tokens)
        left = max(1, whole - said)
        return (left, "stop") if left <= call.max_tokens else (call.max_tokens, "length")

    def _decode(self, running: Running) -> None:
        """Prefill is over."""
        self._advance()
        running.decoding, running.begun, running.timer = True, self._progress, None
        running.spans = [(self._version, 0)]
        self._decoding += 1
        self._number += 1
        heapq.heappush(self._ends, (self._progress + running.tokens, self._number, running))
        self._plan()

    def _advance(self) -> None:
        """Time passes: all calls that decode get on by the same number of tokens."""
        now = asyncio.get_running_loop().time()
        self._progress += (now - self._at) * self._rate()
        self._at = now

    def _rate(self) -> float:
        return self._speed.rate(self._decoding)

    def _plan(self) -> None:
        """Wake up when the next call is over."""
        if self._timer is not None:
            self._timer.cancel()
        while self._ends and self._ends[0][2].done.done():
            heapq.heappop(self._ends)
        if self._ends:
            seconds = max(0.0, self._ends[0][0] - self._progress) / self._rate()
            self._timer = asyncio.get_running_loop().call_later(seconds, self._finish_due)

    def _finish_due(self) -> None:
        self._advance()
        while self._ends and self._ends[0][0] <= self._progress + 1e-6:
            running = heapq.heappop(self._ends)[2]
            self._complete(running, running.tokens, running.finish)
        self._plan()

    def _said(self, running: Running) -> int:
        return min(running.tokens - 1, int(self._progress - running.begun)) if running.decoding else 0

    def _complete(self, running: Running, tokens: int, finish: str) -> None:
        if running.done.done():
            return
        stop = (*running.call.stop_token_ids, *self._eos)[0] if finish == "stop" else None
        ids = self._noise(running.call, tokens)
        if stop is not None and int(ids[-1]) not in (*running.call.stop_token_ids, *self._eos):
            ids[-1] = stop
        starts = [(version, min(first, tokens)) for version, first in running.spans]
        ends = [*(first for _, first in starts[1:]), tokens]
        spans = tuple(Span(v, s, e) for (v, s), e in zip(starts, ends, strict=True) if e > s)
        self.counts["decode_tokens"] += tokens
        logprobs = np.full(tokens, LOGPROB, np.float32)
        running.done.set_result(Completion(running.call.request_id, ids, logprobs, finish, stop, spans))

    def _noise(self, call: Call, tokens: int) -> Ids:
        """By seed and position, so that a greedy call that goes on says the same."""
        low, high = self._speed.letters
        first = len(call.token_ids) + (call.seed or 0 if call.temperature else 0) * 0x9E3779B1 % 2**40
        mixed = np.arange(first, first + tokens, dtype=np.uint64) * _MIX  # wraps round, as a hash does
        return (low + (mixed >> np.uint64(33)) % np.uint64(high - low)).astype(np.int32)

    def _drop(self, running: Running) -> None:
        """Its caller has the answer, or went away."""
        self._calls.pop(running.call.request_id, None)
        if running.timer is not None:
            running.timer.cancel()
        if running.decoding:
            self._advance()
            running.decoding = False
            self._decoding -= 1
            self._plan()
        if not running.done.done() or running.done.cancelled():
            self.counts["aborted"] += 1
            running.done.cancel()

    async def abort(self, request_ids: list[str] | None = None) -> int:
        """See `Engine`."""
        self._advance()
        ended = [r for name, r in self._calls.items() if request_ids is None or name in request_ids]
        for running in ended:
            self._complete(running, self._said(running), "abort")
        self.counts["aborted"] += len(ended)
        return len(ended)

    # --- life --------------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """See `Engine`."""
        return self._name

    async def start(self) -> str:
        """See `Engine`."""
        self._at = asyncio.get_running_loop().time()
        return await self._server.start()

    async def open(self) -> None:
        """See `Engine`."""
        if self._status == "asleep":
            raise EngineError(f"engine {self._name} is asleep: wake it first")
        self._status = "open"

    async def close(self) -> None:
        """See `Engine`."""
        if self._status == "open":
            self._status = "closed"

    async def calls(self) -> int:
        """See `Engine`."""
        return len(self._calls)

    async def sleep(self) -> None:
        """See `Engine`."""
        if self._status == "asleep":
            return
        if self._status == "open" or self._calls:
            raise EngineError(
                f"engine {self._name} is {self._status} with {len(self._calls)} calls: close and abort first"
            )
        self._status = "asleep"

    async def wake(self) -> None:
        """See `Engine`."""
        if self._status == "asleep":
            self._status = "closed"

    async def load(self, version: int, weights: Any = None) -> None:
        """See `Engine`. Calls that decode go on under the new version."""
        self._advance()
        for running in self._calls.values():
            if running.decoding:
                running.spans.append((version, self._said(running)))
        self._version = version

    async def capacity(self) -> int:
        """See `Engine`."""
        return self._executions

    async def stats(self) -> dict[str, float]:
        """See `Engine`."""
        self._advance()
        said = sum(self._said(running) for running in self._calls.values() if not running.done.done())
        return self.counts | {"decode_tokens": self.counts["decode_tokens"] + said}

    async def stop(self) -> None:
        """See `Engine`."""
        self._status = "closed"
        await self.abort()
        await self._server.stop()

    def health(self) -> Health:
        """See `TokenEngine`."""
        return Health(self._status, self._name, self._version, len(self._calls), self._window)
