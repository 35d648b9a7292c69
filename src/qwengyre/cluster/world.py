"""The real World: performs the scheduler's actions on actors and reports what happened.

Consumes actions, produces events; decides nothing. Each action becomes a task that ends in an event or in the failure
of the run. `Hands` are actor handles (or anything whose `method.remote(...)` can be awaited).
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from qwengyre.cluster.cell import CellReport
from qwengyre.cluster.checkpoints import Checkpoint
from qwengyre.cluster.groups import Groups
from qwengyre.cluster.ledger import Ledger
from qwengyre.cluster.record import StepRecord
from qwengyre.errors import RunError
from qwengyre.schedule import actions as act
from qwengyre.schedule import events as ev
from qwengyre.types import Ending, ExecutionId, Place, Query, Role, Routes, Settlement


@dataclass(frozen=True)
class Hands:
    """The actors of a run."""

    gateway: Any
    box: Any
    cells: tuple[Any, ...]


@dataclass
class Live:
    """What the world knows of one cell."""

    report: CellReport
    role: Role = Role.TO_ROLLOUT
    feed: asyncio.Task[None] | None = None


@dataclass
class Cluster:
    """See the module. `clock` gives seconds of the run; `query_of` the task of a group; `note` keeps a settlement."""

    hands: Hands
    groups: Groups
    clock: Callable[[], float]
    query_of: Callable[[int], Query]
    note: Callable[[ExecutionId, Ending, Settlement], None]
    closed: Callable[[StepRecord], None]
    checkpoint_for: Callable[[int, int], Checkpoint | None]
    """(version, finished steps) -> the checkpoint that is due with this publish, or None."""
    completed: Callable[[Checkpoint], None]
    """Its weights are on disk: mark it complete."""
    born: Callable[[int], int]
    """v_d of a group."""
    learning_rate: float
    version: int = 0
    ledger: Ledger = field(default_factory=Ledger)
    live: dict[int, Live] = field(default_factory=dict[int, Live])
    homes: dict[str, int] = field(default_factory=dict[str, int])
    done_work: int = 0
    """Grows with everything that finishes: the watchdog's sign of life."""
    _epoch: int = 0
    _records: dict[int, StepRecord] = field(default_factory=dict[int, StepRecord])
    _events: asyncio.Queue[ev.Event | BaseException] = field(default_factory=asyncio.Queue[ev.Event | BaseException])
    _tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    _publishing: asyncio.Lock = field(default_factory=asyncio.Lock)

    # --- the two methods of the seam -------------------------------------------------------------------------------

    def begin(self, actions: Sequence[act.Action]) -> None:
        """Start every action as a task; never waits."""
        for action in actions:
            self._spawn(self._do(action), action.type)

    async def next_event(self) -> ev.Event:
        """The next event. Raises RunError when a task of the run failed."""
        event = await self._events.get()
        if isinstance(event, BaseException):
            raise event
        return event

    async def stop(self) -> None:
        """Cancel everything in progress."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def join(self, report: CellReport) -> None:
        """A cell listens: open it for calls under the published version."""
        self.live[report.cell] = live = Live(report)
        await self.hands.cells[report.cell].roll.remote(self.version)
        live.role = Role.ROLLOUT
        await self._route()

    def engine_lost(self, cell: int, incarnation: int, reason: str) -> None:
        """A gateway could not reach an engine: with one cell, the run cannot go on."""
        if (live := self.live.get(cell)) and live.report.incarnation == incarnation:
            error = RunError(f"cell {cell} does not answer: {reason}. Continue with --resume.")
            self._events.put_nowait(error)

    async def pulse(self) -> tuple[int, int]:
        """(tokens that the engines have computed so far, model calls in flight): signs of life between two events."""
        stats = await asyncio.gather(*(self.hands.cells[cell].stats.remote() for cell in self.live))
        tokens = sum(s["prefill_tokens"] + s["decode_tokens"] for s in stats)
        return int(tokens), len(await self.hands.gateway.live.remote())

    # --- doing -----------------------------------------------------------------------------------------------------

    async def _do(self, action: act.Action) -> None:
        match action:
            case act.Place():
                await self._execute(action.execution, action.cell)
            case act.Rehome():
                self.homes |= {str(execution): cell for execution, cell in action.homes}
                await self._route()
            case act.Move():
                await self._move(action.cell, action.role)
            case act.Weigh():
                micro_steps = await self.groups.weigh(action.group)
                self._report(ev.Weighed, action.group, len(micro_steps), sum(m.tokens for m in micro_steps))
            case act.OpenStep():
                self.ledger.open(action.step)
                self._records[action.step] = StepRecord(action.step, self.version, opened=self.clock())
            case act.Admit():
                await self._admit(action.group, action.step)
            case act.CloseStep():
                await self._close(action.step)
            case act.Publish():
                await self._publish(action.version, action.step)
            case _:
                pass  # Dispatch and Void ask for nothing: the scheduler's state holds them

    async def _execute(self, execution: ExecutionId, cell: int) -> None:
        """One execution's life: harness > sealed token > frozen work > settlement."""
        name, query = str(execution), self.query_of(execution.group)
        token = secrets.token_urlsafe(24)
        self.homes[name] = cell
        await self.hands.gateway.open.remote(name, token)
        await self._route()
        self._report(ev.Placed, execution)
        ending: Ending = await self.hands.box.run.remote(name, query, token)
        await self.hands.gateway.seal.remote(name)
        self.homes.pop(name, None)
        self._report(ev.Ended, execution, ending)
        settlement: Settlement = await self.hands.box.settle.remote(name, query, ending)
        self.note(execution, ending, settlement)
        self._report(ev.Settled, execution, settlement.verdict, settlement.score)

    async def _move(self, cell: int, role: Role) -> None:
        """One transition of a cell, in the order of design section 5."""
        live, handle = self.live[cell], self.hands.cells[cell]
        if role is Role.TRAINING:
            live.role = Role.TO_TRAINING
            await handle.shut.remote()
            await self._route()
            await handle.drain.remote()
            await handle.train.remote()
            live.role = Role.TRAINING
            live.feed = asyncio.create_task(self._feed(cell))
            live.feed.add_done_callback(self._over)
        else:
            live.role = Role.TO_ROLLOUT
            await self._stop_feeding(live)
            async with self._publishing:  # a cell is routable only when it holds the published version
                await handle.roll.remote(self.version)
                live.role = Role.ROLLOUT
            await self._route()
        self._report(ev.Moved, cell, role)

    async def _feed(self, cell: int) -> None:
        """Consumes micro-steps of the ledger, produces gradient at the cell. Waits for data; ends by cancellation."""
        live, handle = self.live[cell], self.hands.cells[cell]
        while True:
            claim = await self.ledger.claim(cell, live.report.incarnation)
            began = self.clock()
            sums: dict[str, float] = await handle.accumulate.remote(claim.micro_step)
            if self.ledger.count(claim):
                self._records[claim.step].add(sums, self.clock() - began)
                self._backlog(claim.step)

    async def _stop_feeding(self, live: Live) -> None:
        if live.feed is not None:
            live.feed.cancel()
            await asyncio.gather(live.feed, return_exceptions=True)
            live.feed = None

    async def _admit(self, group: int, step: int) -> None:
        micro_steps = await self.groups.weigh(group)
        self._records[step].admit(self.groups.summary(group, self.born(group)))
        self.ledger.add(micro_steps)
        self._backlog(step)

    async def _close(self, step: int) -> None:
        """The optimizer step at the core, with scale 1/E; a step without weight makes no optimizer call."""
        record = self._records[step]
        if self.ledger.counted:
            metrics = await self.hands.cells[0].close_step.remote(1.0 / record.num_executions, self.learning_rate)
            record.optimizer = metrics | {"learning_rate": self.learning_rate}
        record.closed = self.clock()
        self.closed(self._records.pop(step))
        for group in record.groups:
            self.groups.forget(group.group)
        self._report(ev.StepClosed, step)

    async def _publish(self, version: int, step: int) -> None:
        async with self._publishing:
            checkpoint = self.checkpoint_for(version, step)
            if checkpoint is not None:
                await self.hands.cells[0].save.remote(checkpoint.folder)
                self.completed(checkpoint)
            self.version = version
            rolling = [cell for cell, live in self.live.items() if live.role is Role.ROLLOUT]
            await asyncio.gather(*(self.hands.cells[cell].publish.remote(version) for cell in rolling))
        self._report(ev.Published, version)

    async def _route(self) -> None:
        """Push routes to the gateway; returns when it acknowledged them."""
        self._epoch += 1
        cells = {
            cell: Place(live.report.url, live.report.incarnation)
            for cell, live in self.live.items()
            if live.role is Role.ROLLOUT
        }
        await self.hands.gateway.route.remote(Routes(self._epoch, cells, dict(self.homes)))

    # --- reporting -------------------------------------------------------------------------------------------------

    def _backlog(self, step: int) -> None:
        ledger = self.ledger
        self._report(ev.Backlog, step, len(ledger.pending), len(ledger.claimed), len(ledger.counted))

    def _report(self, event: Callable[..., ev.Event], *fields: Any) -> None:
        self.done_work += 1
        self._events.put_nowait(event(self.clock(), *fields))

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        """A task that failed fails the run: the next `next_event` raises."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._events.put_nowait(error if isinstance(error, RunError) else failure(task.get_name(), error))


def failure(name: str, error: BaseException) -> RunError:
    """One line for a task of the run that failed."""
    cause = str(error).strip().splitlines() or [type(error).__name__]
    run_error = RunError(f"'{name}' failed: {type(error).__name__}: {cause[-1]}. Continue with --resume.")
    run_error.__cause__ = error
    return run_error


def run_clock(start: float) -> Callable[[], float]:
    """Monotonic seconds of the run, continued from `start` on resume."""
    origin = time.monotonic() - start
    return lambda: time.monotonic() - origin
