"""How a call gets its tokens: attempts at engines, one after the other, until it has finished.

An engine that keeps what it has seen is sent only what is new: `prefix` names an earlier request whose prompt and
output it begins with. An engine that does not know the name says so, and gets all ids.
"""

import asyncio
import hashlib
import secrets
import zlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import numpy as np

from qwengyre.errors import EngineError
from qwengyre.gateway.calls import Call
from qwengyre.gateway.canon import Refusal
from qwengyre.gateway.echo import NONE, Edits
from qwengyre.gateway.forward import Engines, Part, nothing
from qwengyre.gateway.journal import Writer
from qwengyre.gateway.render import Renderer
from qwengyre.gateway.routing import Home, Switch, Tasks
from qwengyre.trajectory.tree import ROOT, Tree
from qwengyre.types import Ids, Sampling

SEALED = "this execution has ended; its token takes no more calls"
_GONE_S = 600.0
"""How long a call may go on at a cell that the routes no longer name (it drains, or nobody can reach it)."""
_WORTH = 256
"""Tokens from which a prefix is named rather than sent."""


@dataclass(frozen=True)
class Shared:
    """What all sessions of a gateway use."""

    renderer: Renderer
    sampling: Sampling
    window: int
    seed: int
    engines: Engines
    switch: Switch
    writer: Writer
    tasks: Tasks
    lost: Callable[[Home, str], Coroutine[Any, Any, None]]
    live: bool = False
    """Whether streams are told what is sampled at once, not when it is complete."""
    edits: Edits = NONE
    """What the harness does to the tool calls that it sends back."""


class Generation:
    """Runs the calls of one execution. `note` is told of every change of a call's state."""

    def __init__(self, execution: str, tree: Tree, shared: Shared, note: Callable[[], None]) -> None:
        self._execution, self._tree, self._shared, self._note = execution, tree, shared, note
        self.sealing = False
        self.temperature = shared.sampling.temperature
        """The run's, unless the execution was opened with its own; 0: greedy."""
        self._kept: dict[int, tuple[str, str]] = {}
        """Sampled row -> (engine URL, request) that knows the path to it."""
        self._sums: dict[int, int] = {ROOT: 0}
        """Row -> CRC-32 of the path to it."""

    async def run(self, call: Call) -> None:
        """Waits for: routes, the engine. Returns when the call has finished; raises Refusal or EngineError."""
        newer = -1
        while not call.finish:
            call.enter("queued")
            self._note()
            await call.wanted.wait()
            home = await self._shared.switch.home(self._execution, newer)
            if self.sealing:
                raise Refusal("sealed", SEALED)
            if not call.attached:
                continue  # the client left while the call was queued
            part = await self._attempt(call, home)
            call.take(part)
            newer = self._interrupted(call, home, part, newer)

    def grown(self, call: Call, row: int) -> None:
        """The call's output is `row` now: an engine that keeps sequences knows the path to it."""
        if call.kept is not None:
            self._kept[row] = call.kept

    async def _attempt(self, call: Call, home: Home) -> Part:
        """One generate call at the execution's home, from the prompt and what was sampled so far."""
        part = await self._ask(call, home, self._prefix(call, home.url))
        return await self._ask(call, home, None) if part.finish == "unknown_prefix" else part

    async def _ask(self, call: Call, home: Home, known: tuple[int, str] | None) -> Part:
        shared, request_id = self._shared, f"{self._execution}-{call.number}-{secrets.token_hex(4)}"
        row, earlier = known or (ROOT, "")
        body = {
            "request_id": request_id,
            "token_ids": np.concatenate([*self._between(row, call.prompt.parent), call.prompt.suffix, call.output]),
            "sampling_params": {
                "max_tokens": call.budget - call.tokens,
                "temperature": self.temperature,
                "stop_token_ids": list(shared.renderer.stop_ids),
                "seed": _seed(shared.seed, self._execution, call.number, call.tokens),
                "logprobs": 0,
            },
            "handle": self._execution,
        }
        if known is not None:
            body["prefix"] = {"request_id": earlier, "length": self._tree.lengths[row], "crc": self._sum(row)}
        call.aborting, call.attempt = False, (home.url, request_id)
        call.enter("running", home.cell)
        self._note()
        hear = call.hear if shared.live and call.request.stream and not call.request.stops else None
        work = asyncio.create_task(shared.engines.generate(home.url, body, hear))
        gone = asyncio.create_task(shared.switch.gone(home, _GONE_S))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            part = work.result() if work.done() else nothing("lost", "the routes have given this place up")
        finally:
            work.cancel()
            gone.cancel()
            call.attempt = None
        call.kept = (home.url, request_id) if part.kept else None
        return part

    def _interrupted(self, call: Call, home: Home, part: Part, newer: int) -> int:
        """What an attempt's end means for the next one: only routes newer than the returned epoch may be used."""
        if call.finish or (part.finish == "abort" and call.aborting):
            return newer
        if part.finish == "too_long":
            raise Refusal("too_long", part.reason, "messages")
        if part.finish == "invalid":
            raise EngineError(f"the engine of cell {home.cell} refused a call: {part.reason}")
        if part.finish == "lost":
            self._shared.tasks.spawn(self._shared.lost(home, part.reason))
        return home.epoch

    def _prefix(self, call: Call, url: str) -> tuple[int, str] | None:
        """The nearest sampled row before the call that this engine knows, and the request that it knows it by."""
        row = call.prompt.parent
        while row != ROOT:
            at, request_id = self._kept.get(row, ("", ""))
            if at == url:
                return (row, request_id) if self._tree.lengths[row] >= _WORTH else None
            row = self._tree.parents[row]
        return None

    def _between(self, row: int, end: int) -> list[Ids]:
        """Ids of the path from behind `row` to `end`."""
        parts: list[Ids] = []
        while end != row:
            parts.append(self._tree.ids(end))
            end = self._tree.parents[end]
        return parts[::-1]

    def _sum(self, row: int) -> int:
        """CRC-32 of the ids (little-endian int32) from the root to the end of `row`."""
        rows: list[int] = []
        while row not in self._sums:
            rows.append(row)
            row = self._tree.parents[row]
        value = self._sums[row]
        for row in reversed(rows):
            value = self._sums[row] = zlib.crc32(self._tree.ids(row).astype("<i4", copy=False).data, value)
        return value


def _seed(seed: int, execution: str, call: int, token: int) -> int:
    """The same call of the same run is sampled with the same seed."""
    digest = hashlib.blake2b(f"{seed}/{execution}/{call}/{token}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") >> 1
