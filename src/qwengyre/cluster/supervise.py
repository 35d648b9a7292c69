"""Every process of a run comes back: Ray restarts it within seconds, and control makes it what it was.

For each actor there is one task here, with one call that never returns (`life`): its failure is the process's death.

    gateway   reopens its journals at the same socket; gets the routes again
    box       its executions are lost; it takes new ones
    cell      CellLost, routes without it; then the published weights, routes with it, CellReady
    core      CellLost, then GoBackError out of `next_event`: control goes back to the newest checkpoint (recovery.py)
"""

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qwengyre.cluster.boxes import BoxReport
from qwengyre.cluster.cell import CellReport
from qwengyre.cluster.moves import PhaseError
from qwengyre.cluster.training import CORE
from qwengyre.errors import QwenGyreError, RunError
from qwengyre.schedule import events as ev

if TYPE_CHECKING:
    from qwengyre.cluster.world import Cluster

MOST_DEATHS = 8
"""A process that dies so often while nothing is published ends the run."""
MOST_SILENT = 3
"""A cell whose engine gave no usable answer so often is restarted."""
BEAT_S = 10.0
"""How often a box hears from control."""


class GoBackError(QwenGyreError):
    """The core died with its weights and the gradient of the open step: the run goes back to a checkpoint."""


class Supervisor:
    """Starts what the run is made of and watches over it. Lives in control's event loop."""

    def __init__(self, world: "Cluster", run_dir: Path, machine: dict[str, Any]) -> None:
        """`machine`: what the driver knows of itself and of Ray; the first part of `processes.json`."""
        self._world = world
        self._path = run_dir / "processes.json"
        self._machine = machine
        self._processes: dict[str, dict[str, Any]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.deaths: list[str] = []
        """A line each."""
        self._deaths: Counter[str] = Counter()
        self._silent: Counter[tuple[int, int]] = Counter()
        self._core_up = asyncio.Event()

    async def open(self) -> BoxReport:
        """Gateway and box are up; what the box knows of executions."""
        self.note("control", {"pid": os.getpid()})
        _, box = await asyncio.gather(self._open_gateway(), self._open_box())
        self._spawn("gateway", self._keep_gateway())
        self._spawn("box", self._keep_box())
        self._spawn("beat", self._beat())
        return box

    async def open_cells(self, version: int, checkpoint: Path | None) -> list[CellReport]:
        """All cells serve the weights of `checkpoint` (None: the model as given) as `version`."""
        cells = range(len(self._world.crew.hands.cells))
        reports = await asyncio.gather(*(self._bring(cell, version, checkpoint) for cell in cells))
        for report in reports:
            self._spawn(f"cell {report.cell}", self._keep_cell(report))
        return reports

    async def close(self) -> None:
        """Watch no more."""
        await self._cancel(*self._tasks)

    async def close_cells(self) -> None:
        """Watch the cells no more: all of them are about to be opened again."""
        await self._cancel(*(name for name in self._tasks if name.startswith("cell ")))
        self._core_up.clear()

    def published(self) -> None:
        """The run got on: the counts of deaths start over."""
        self._deaths.clear()

    def give_up(self, cell: int, incarnation: int, reason: str) -> None:
        """The cell failed in a way that only a restart mends."""
        live = self._world.crew.live.get(cell)
        if live is not None and live.report.incarnation == incarnation:
            self.note(f"cell-{cell}", self._processes.get(f"cell-{cell}", {}) | {"given_up": reason})
            self._spawn(f"leave {cell}", self._leave(cell, incarnation))

    async def engine_lost(self, cell: int, incarnation: int, reason: str) -> None:
        """A gateway got no usable answer: the same place under a new epoch, if it lives; its death shows by itself."""
        live = self._world.crew.live.get(cell)
        if live is None or live.report.incarnation != incarnation:
            return
        self._silent[cell, incarnation] += 1
        if self._silent[cell, incarnation] >= MOST_SILENT:
            self.give_up(cell, incarnation, f"its engine does not answer: {reason}")
        else:
            await self._world.router.push()

    # --- gateway and box ---------------------------------------------------------------------------------------------

    async def _open_gateway(self) -> int:
        crew, router = self._world.crew, self._world.router
        report = await crew.call("the gateway", crew.hands.gateway.start, crew.hands.control)
        router.epoch = max(router.epoch, report.pop("epoch"))
        self.note("gateway-0", report)
        return report["incarnation"]

    async def _open_box(self) -> BoxReport:
        crew = self._world.crew
        report: BoxReport = await crew.call("the box", crew.hands.box.start, crew.hands.gateway)
        self.note("box-0", {"pid": report.pid, "incarnation": report.incarnation})
        crew.box = report.incarnation
        crew.boxed.set()
        return report

    async def _keep_gateway(self) -> None:
        incarnation = self._processes["gateway-0"]["incarnation"]
        while True:
            await self._end_of("the gateway", self._world.crew.hands.gateway, incarnation)
            incarnation = await self._open_gateway()
            await self._world.router.push()

    async def _keep_box(self) -> None:
        crew = self._world.crew
        while True:
            await self._end_of("the box", crew.hands.box, crew.box)
            crew.boxed.clear()
            await self._open_box()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            with suppress(*self._world.crew.hands.lost):
                await self._world.crew.hands.box.heard.remote()

    # --- cells -------------------------------------------------------------------------------------------------------

    async def _keep_cell(self, report: CellReport) -> None:
        world, cell = self._world, report.cell
        while True:
            await self._end_of(f"cell {cell}", world.crew.handle(cell), report.incarnation)
            if cell == CORE:
                self._core_up.clear()
            await self._lost(cell)
            if cell == CORE:
                world.fail(GoBackError("cell 0, the core, died"))
                return
            report = await self._bring(cell, world.crew.version, None)
            world.crew.report(ev.CellReady, cell, report.incarnation, report.capacity)

    async def _lost(self, cell: int) -> None:
        """Its claims return, its executions wait for the scheduler's word."""
        world = self._world
        live = world.crew.live.pop(cell, None)
        if live is None:
            return
        await world.training.forget(live)
        world.router.evict(cell)
        world.crew.report(ev.CellLost, cell, live.report.incarnation)
        await world.router.push()

    async def _bring(self, cell: int, version: int, checkpoint: Path | None) -> CellReport:
        """From a process to a cell that takes calls. A satellite pulls the weights of a core that is up."""
        world, handle, name = self._world, self._world.crew.handle(cell), f"cell {cell}"
        folder = checkpoint if cell == CORE else None
        if cell != CORE and cell in world.crew.live:  # it goes on serving until the core is back
            await self._core_up.wait()
            world.crew.live.pop(cell)
        while True:
            report: CellReport = await world.crew.call(name, handle.start, version, folder)
            self.note(f"cell-{cell}", asdict(report))
            if cell != CORE:
                await self._core_up.wait()
            try:
                await world.moves.join(report)
            except PhaseError as error:
                if cell != CORE and not self._core_up.is_set():
                    continue  # the core died meanwhile
                self._count(name, error)
                await self._leave(cell, report.incarnation)
            else:
                if cell == CORE:
                    self._core_up.set()
                return report

    async def _leave(self, cell: int, incarnation: int) -> None:
        with suppress(*self._world.crew.hands.lost):
            await self._world.crew.handle(cell).leave.remote(incarnation)

    # --- all of them -------------------------------------------------------------------------------------------------

    async def _end_of(self, name: str, handle: Any, incarnation: int) -> None:
        """Returns when that incarnation is dead. Raises RunError when it happens again and again."""
        try:
            await handle.life.remote(incarnation)
            self._count(name, RunError("it restarted"))
        except self._world.crew.hands.lost as error:
            self._count(name, error)

    def _count(self, name: str, error: BaseException) -> None:
        self._deaths[name] += 1
        self.deaths.append(f"{name} died at {self._world.crew.clock():.0f} s and is started again")
        if self._deaths[name] >= MOST_DEATHS:
            said = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise RunError(
                f"{name} failed {self._deaths[name]} times while nothing was published: {said}. Continue with --resume."
            ) from error

    def note(self, name: str, facts: dict[str, Any]) -> None:
        """A process and where it listens, in `processes.json`: complete or as it was."""
        self._processes[name] = facts | {"since": round(time.time(), 3), "deaths": len(self.deaths)}
        part = self._path.with_name(f".{self._path.name}")
        part.write_text(
            json.dumps({"schema_version": 1, **self._machine, "processes": self._processes}, indent=1) + "\n"
        )
        part.rename(self._path)

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = self._tasks[name] = asyncio.create_task(work, name=name)
        task.add_done_callback(self._world.over)

    async def _cancel(self, *names: str) -> None:
        tasks = [self._tasks.pop(name) for name in names]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
