"""The real World: begins the scheduler's actions on actors and reports what happened.

Consumes actions, produces events; decides nothing. Each action becomes a task that ends in an event or in the failure
of the run. The parts: `executions.py`, `moves.py`, `routing.py`, `training.py`, over one `crew.py`.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from qwengyre.cluster.crew import Books, Crew, Hands
from qwengyre.cluster.executions import Executions
from qwengyre.cluster.groups import Groups
from qwengyre.cluster.moves import Moves
from qwengyre.cluster.routing import Router
from qwengyre.cluster.training import Training
from qwengyre.errors import RunError
from qwengyre.schedule import actions as act
from qwengyre.schedule import events as ev


class Cluster:
    """See the module. `clock` gives seconds of the run."""

    def __init__(self, hands: Hands, groups: Groups, books: Books, clock: Callable[[], float]) -> None:
        self._events: asyncio.Queue[ev.Event | BaseException] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self.reported = 0
        """Events so far: one of the watchdog's signs of life."""
        self.crew = Crew(hands, clock, self._report)
        self.router = Router(self.crew)
        self.training = Training(self.crew, groups, books)
        self.moves = Moves(self.crew, self.router, self.training, books, self._over, self.engine_lost)
        self.executions = Executions(self.crew, self.router, books)

    def begin(self, actions: Sequence[act.Action]) -> None:
        """Start every action as a task; never waits."""
        for action in actions:
            task = asyncio.create_task(self._do(action), name=action.type)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(self._over)

    async def next_event(self) -> ev.Event:
        """The next event. Raises RunError when a task of the run failed."""
        event = await self._events.get()
        if isinstance(event, BaseException):
            raise event
        return event

    async def stop(self) -> None:
        """Cancel everything in progress."""
        feeds = [live.feed for live in self.crew.live.values() if live.feed is not None]
        for task in [*self._tasks, *feeds]:
            task.cancel()
        await asyncio.gather(*self._tasks, *feeds, return_exceptions=True)

    def engine_lost(self, cell: int, incarnation: int, reason: str) -> None:
        """A gateway could not reach an engine: with one cell, the run cannot go on."""
        if (live := self.crew.live.get(cell)) and live.report.incarnation == incarnation:
            error = RunError(f"cell {cell} does not answer: {reason}. Continue with --resume.")
            self._events.put_nowait(error)

    async def pulse(self) -> tuple[int, int]:
        """(tokens that the engines have computed so far, model calls in flight): signs of life between two events."""
        stats = await asyncio.gather(*(self.crew.handle(cell).stats.remote() for cell in self.crew.live))
        tokens = sum(s["prefill_tokens"] + s["decode_tokens"] for s in stats)
        return int(tokens), len(await self.crew.hands.gateway.live.remote())

    async def _do(self, action: act.Action) -> None:
        work: Coroutine[Any, Any, None] | None = None
        match action:
            case act.Place():
                work = self.executions.run(action.execution, action.cell)
            case act.Rehome():
                self.router.rehome(action.homes)
                await self.router.push()
            case act.Move():
                work = self.moves.become(action.cell, action.role, action.incarnation)
            case act.Weigh():
                work = self.training.weigh(action.group)
            case act.OpenStep():
                self.training.open(action.step)
            case act.Admit():
                work = self.training.admit(action.group, action.step)
            case act.CloseStep():
                work = self.training.close(action.step)
            case act.Publish():
                work = self.training.publish(action.version, action.step)
            case _:
                pass  # Dispatch and Void ask for nothing: the scheduler's state holds them
        if work is not None:
            await work

    def _report(self, event: Callable[..., ev.Event], *fields: Any) -> None:
        self.reported += 1
        self._events.put_nowait(event(self.crew.clock(), *fields))

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
