"""A box: the parent of the sandboxes and verifiers of one node. A plain class; `ray.py` makes it an actor.

Owns no decision: control says which execution runs what. A box's death ends its executions, never the run. Control's
death ends none of them: they go on, and what became of them is told to the next control.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qwengyre.cluster.cell import draw_incarnation
from qwengyre.errors import StartingError
from qwengyre.execution.harnesses.build import build as build_harness
from qwengyre.execution.runner import Runner
from qwengyre.execution.sandboxes import cgroups
from qwengyre.execution.sandboxes.build import build as build_sandbox
from qwengyre.types import Ending, Query, Settlement

AWAY_S = 120.0
"""Without a word from control for so long, a box ends its sandboxes: control is gone, or this node is cut off."""


@dataclass(frozen=True)
class BoxSpec:
    """The arguments of a box's constructor, replayed at a restart. Folders are on the box's own node."""

    run_id: str
    run_dir: Path
    scratch: Path
    socket: Path
    model: str
    harness: dict[str, Any]
    sandbox: str
    images: dict[str, str] = field(default_factory=dict[str, str])
    verifier: str = "task"
    retries: int = 2
    concurrent_verifiers: int = 4
    away_s: float = AWAY_S


@dataclass(frozen=True)
class BoxReport:
    """What a box says to a control that greets it. `known`: executions that this incarnation was told to run.

    `fresh`: no control has greeted this incarnation before.
    """

    incarnation: int
    pid: int
    fresh: bool
    known: frozenset[str]


class Box:
    """run -> settle, for many executions at once; both are told again, not done again, when they are asked again."""

    def __init__(self, spec: BoxSpec) -> None:
        self._spec = spec
        self.incarnation = draw_incarnation(spec.run_dir, "box-0")
        self._greeted = False
        self._gateway: Any = None
        self._runner: Runner | None = None
        self._runs: dict[str, asyncio.Task[Ending]] = {}
        self._settled: dict[str, asyncio.Task[Settlement]] = {}
        self._heard = time.monotonic()
        self._guard: asyncio.Task[None] | None = None

    async def start(self, gateway: Any) -> BoxReport:
        """Build the runner in this event loop. Idempotent. `gateway` answers how long an execution's calls were queued.

        What an earlier incarnation left behind is ended first.
        """
        fresh, self._greeted = not self._greeted, True
        self._gateway, self._heard = gateway, time.monotonic()
        if self._runner is None:
            await asyncio.to_thread(cgroups.sweep, self._spec.run_id)
            self._runner = self._runner or self._build()
            self._guard = self._guard or asyncio.create_task(self._watch())
        return BoxReport(self.incarnation, os.getpid(), fresh, frozenset(self._runs))

    async def life(self, incarnation: int) -> None:
        """Returns never: who waits for it hears at once when this process dies. At once for one that is dead."""
        if incarnation == self.incarnation:
            await asyncio.Event().wait()

    async def heard(self) -> None:
        """A word from control."""
        self._heard = time.monotonic()

    async def run(self, execution: str, query: Query, token: str, incarnation: int) -> Ending:
        """The harness, from start until its sandbox is gone. Asked again, it answers what became of it.

        LOST when it was begun by another incarnation: that one's sandboxes are gone.
        """
        runner = self._runner_
        if incarnation != self.incarnation:
            return Ending.LOST
        queued_s = _Queued(lambda: self._gateway.queued_s.remote(execution)).seconds
        return await _once(
            self._runs,
            execution,
            lambda: runner.run(execution, query, token=token, socket=self._spec.socket, queued_s=queued_s),
        )

    async def settle(self, execution: str, query: Query, ending: Ending) -> Settlement:
        """Freeze and hash the work, then grade it. Comes after the token was sealed. A restarted box grades the same
        frozen work again."""
        runner = self._runner_
        return await _once(self._settled, execution, lambda: runner.settle(execution, query, ending))

    async def stop(self) -> None:
        """End every sandbox."""
        if self._runner is not None:
            await asyncio.shield(self._runner.stop())

    async def _watch(self) -> None:
        """Ends what runs when control has been silent for too long."""
        while True:
            await asyncio.sleep(self._spec.away_s / 8)
            if time.monotonic() - self._heard > self._spec.away_s:
                tasks = self._runs | self._settled
                await asyncio.gather(*(self._runner_.kill(name) for name, task in tasks.items() if not task.done()))

    @property
    def _runner_(self) -> Runner:
        if self._runner is None:
            raise StartingError("the box was not started yet")
        return self._runner

    def _build(self) -> Runner:
        spec = self._spec
        return Runner(
            run_id=spec.run_id,
            folder=spec.run_dir / "executions",
            scratch=spec.scratch,
            harness=build_harness(**spec.harness),
            sandbox=build_sandbox(spec.sandbox, run_id=spec.run_id, scratch=spec.scratch),
            images=spec.images,
            verifier=spec.verifier,
            retries=spec.retries,
            concurrent_verifiers=spec.concurrent_verifiers,
            model=spec.model,
        )


class _Queued:
    """Seconds that an execution's calls were queued, over the deaths of its gateway (which counts from 0 again)."""

    def __init__(self, ask: Callable[[], Awaitable[float]]) -> None:
        self._ask = ask
        self._before = self._last = 0.0

    async def seconds(self) -> float:
        try:
            now = await self._ask()
        except Exception:  # the gateway restarts: what was known last holds
            return self._before + self._last
        if now < self._last:
            self._before += self._last
        self._last = now
        return self._before + now


async def _once(tasks: "dict[str, asyncio.Task[Any]]", name: str, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """The result of the one task of that name, which outlives whoever asks."""
    if name not in tasks:
        tasks[name] = asyncio.create_task(work(), name=name)
    return await asyncio.shield(tasks[name])
