"""Transitions of cells, in the order of design section 5: the harness sees one slow call at most.

to training   shut: the engine answers 409 > routes: the gateways acknowledged routes without it > kv: keys and values
              of its live calls go to their new places > drain: its calls end with their partial output, engine asleep
              > train: trainer awake with the core's weights > it claims micro-steps
to rollout    stop: it claims nothing more, the core has its gradient > snapshot: of the published weights > roll:
              trainer asleep, engine awake with them, open > routes: the gateways acknowledged routes with it

A saga: each phase has a deadline. One that fails sends the cell back to rollout; a cell that cannot even do that, or
fails again and again, is lost. Calls in flight are the gateway's: they go on wherever the routes send them.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from qwengyre.cluster.cell import CellReport
from qwengyre.cluster.crew import Books, Crew, Live
from qwengyre.cluster.handover import hand_over
from qwengyre.cluster.record import MoveRecord
from qwengyre.cluster.routing import Router
from qwengyre.cluster.training import Training
from qwengyre.errors import QwenGyreError, RunError
from qwengyre.schedule import events as ev
from qwengyre.types import Role

T = TypeVar("T")

PHASE_S = 120.0
"""A phase that takes longer has failed."""
MOST_FAILURES = 3
"""A cell that fails so often in a row to reach training is lost."""


class PhaseError(QwenGyreError):
    """A phase of a transition failed or missed its deadline: which one, and why."""


@dataclass
class Moves:
    """`failed` is told of a feed that ended by itself, `lost` of a cell that is given up: (cell, incarnation, why)."""

    crew: Crew
    router: Router
    training: Training
    books: Books
    failed: Callable[[asyncio.Task[None]], None]
    lost: Callable[[int, int, str], None]
    phase_s: float = PHASE_S
    now: dict[int, str] = field(default_factory=dict[int, str])
    """Cell in transit -> the phase it is in."""
    _failures: Counter[int] = field(default_factory=Counter[int])

    async def join(self, report: CellReport) -> None:
        """A cell listens: open it for calls under the published version. Raises PhaseError."""
        live = self.crew.live[report.cell] = Live(report)
        self._failures[report.cell] = 0
        await self._roll(live, MoveRecord(report.cell, report.incarnation, Role.ROLLOUT, self.crew.clock(), 0))
        self.now.pop(report.cell, None)

    async def become(self, cell: int, role: Role, incarnation: int) -> None:
        """Produces Moved (with the other role when it was compensated), or tells `lost`. A move that was meant for
        another incarnation (-1: any) is refused in silence: the cell's loss withdraws it."""
        live = self.crew.live.get(cell)
        if live is None or incarnation not in (-1, live.report.incarnation):
            return
        executions = self.router.leaving(cell)
        record = MoveRecord(cell, live.report.incarnation, role, self.crew.clock(), len(executions))
        try:
            if role is Role.TRAINING:
                await self._train(live, record, executions)
            else:
                await self._phase(record, "stop", self.training.stop_feeding(live))
                await self._roll(live, record)
        except PhaseError as error:
            record.failed = str(error)
            await self._compensate(live, record)
        else:
            self._failures[cell] = 0
        self._report(live, record)

    async def _train(self, live: Live, record: MoveRecord, executions: dict[str, int]) -> None:
        handle, incarnation = self.crew.handle(record.cell), record.incarnation
        live.role = Role.TO_TRAINING
        await self._phase(record, "shut", handle.shut.remote(incarnation=incarnation))
        await self._phase(record, "routes", self.router.push())
        await self._phase(record, "kv", self._hand_over(record, executions))
        drained = await self._phase(record, "drain", handle.drain.remote(incarnation=incarnation))
        record.calls, record.tokens = drained.calls, drained.tokens
        if all(home == record.cell for home in executions.values()):  # nothing was handed over: suspended in place
            record.kv_recomputed = drained.kv
        await self._phase(record, "train", self.training.wake(record.cell))
        if self._is_current(live, record):
            live.role = Role.TRAINING
            live.feed = asyncio.create_task(self.training.feed(record.cell), name=f"feed of cell {record.cell}")
            live.feed.add_done_callback(self.failed)

    async def _hand_over(self, record: MoveRecord, executions: dict[str, int]) -> None:
        """Keys and values of executions that go to another cell. Never fails: what is not moved is computed again."""
        homes = {name: home for name, home in executions.items() if home != record.cell}
        if homes:
            handed = await hand_over(self.crew, record.cell, homes, self.phase_s / 2)
            record.kv_moved, record.kv_recomputed = handed.moved_tokens, handed.recomputed_tokens

    async def _roll(self, live: Live, record: MoveRecord) -> None:
        live.role = Role.TO_ROLLOUT
        async with self.training.publishing:  # a cell is routable only when it holds the published version
            snapshot = await self._phase(record, "snapshot", self.training.served(record.cell))
            roll = self.crew.handle(record.cell).roll
            await self._phase(record, "roll", roll.remote(self.crew.version, snapshot, incarnation=record.incarnation))
            live.role = Role.ROLLOUT
        await self._phase(record, "routes", self.router.push())

    async def _compensate(self, live: Live, record: MoveRecord) -> None:
        """Back to rollout, where every half-done transition can go. Leaves the cell LOST when it cannot."""
        live.role = Role.LOST
        self._failures[record.cell] += 1
        if self._failures[record.cell] >= MOST_FAILURES or not self._is_current(live, record):
            return
        try:
            await self._roll(live, record)
        except PhaseError as error:
            record.failed += f"; then {error}"
            live.role = Role.LOST

    def _report(self, live: Live, record: MoveRecord) -> None:
        """The cell's role is what became of the move. A cell that was lost meanwhile has been reported already."""
        self.now.pop(record.cell, None)
        current = self._is_current(live, record)
        record.outcome = str(live.role if current else Role.LOST)
        self.books.moved(record)
        if current and live.role is Role.LOST:
            self.lost(record.cell, record.incarnation, record.failed)
        elif current:
            self.crew.report(ev.Moved, record.cell, live.role)

    def _is_current(self, live: Live, record: MoveRecord) -> bool:
        return self.crew.live.get(record.cell) is live

    async def _phase(self, record: MoveRecord, name: str, work: Awaitable[T]) -> T:
        """Raises PhaseError when `work` fails or is not done in time; RunError as it comes: it is not the cell's."""
        began = self.crew.clock()
        self.now[record.cell] = name
        try:
            async with asyncio.timeout(self.phase_s):
                return await work
        except RunError:
            raise
        except TimeoutError:
            raise PhaseError(f"'{name}' of cell {record.cell} was not done in {self.phase_s:.0f} s") from None
        except Exception as error:
            said = (str(error).strip().splitlines() or [""])[-1]
            raise PhaseError(f"'{name}' of cell {record.cell} failed: {type(error).__name__}: {said}") from error
        finally:
            record.phases[name] = record.phases.get(name, 0.0) + self.crew.clock() - began
