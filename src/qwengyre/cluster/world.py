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
from qwengyre.cluster.training import CORE, CoreLostError, Training
from qwengyre.errors import QwenGyreError, RunError, StartingError
from qwengyre.schedule import actions as act
from qwengyre.schedule import events as ev

ENGINE_TOKENS = {"sampled": "decode_tokens", "read": "prefill_tokens"}
"""Kind of token -> the engine's counter."""
KEPT_ACTIONS = {act.Place.type, act.Weigh.type, "attach"}
KEPT_EVENTS = (ev.Placed, ev.Ended, ev.Settled, ev.Weighed)
"""What a return to a checkpoint leaves alone: executions, and the weighing of their groups."""


class Cluster:
    """See the module. `clock` gives seconds of the run."""

    def __init__(self, hands: Hands, groups: Groups, books: Books, clock: Callable[[], float]) -> None:
        self.books = books
        self._groups = groups
        self.lost: Callable[[int, int, str], None] = self._no_losses
        """(cell, incarnation, reason): a cell failed in a way that only a restart mends."""
        self._events: asyncio.Queue[ev.Event | BaseException] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self.reported = 0
        """Events so far: one of the watchdog's signs of life."""
        self.crew = Crew(hands, clock, self._report)
        self.router = Router(self.crew)
        self._equip()
        self.executions = Executions(self.crew, self.router, books)

    def _equip(self) -> None:
        """New parts for training and moves: a ledger, records, sagas of which nothing is left."""
        self.training = Training(self.crew, self._groups, self.books, self._cell_lost)
        self.moves = Moves(self.crew, self.router, self.training, self.books, self.over, self._cell_lost)

    def begin(self, actions: Sequence[act.Action]) -> None:
        """Start every action as a task; never waits."""
        for action in actions:
            self.spawn(self._do(action), action.type)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Do `work` in the background; its failure is the run's."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(self.over)

    async def next_event(self) -> ev.Event:
        """The next event. Raises RunError when a task of the run failed."""
        event = await self._events.get()
        if isinstance(event, BaseException):
            raise event
        return event

    async def stop(self) -> None:
        """Cancel everything in progress."""
        await self._cancel(self._tasks)

    async def withdraw(self) -> None:
        """The run goes back to a checkpoint: executions and weighing go on, everything else that was asked ends here,
        with what it reported and nobody has heard yet."""
        await self._cancel({task for task in self._tasks if task.get_name() not in KEPT_ACTIONS})
        self._equip()
        waiting = [self._events.get_nowait() for _ in range(self._events.qsize())]
        for event in waiting:
            if isinstance(event, (*KEPT_EVENTS, RunError)):
                self._events.put_nowait(event)

    def fail(self, error: BaseException) -> None:
        """The next `next_event` raises this."""
        self._events.put_nowait(error)

    async def pulse(self) -> tuple[dict[str, int], int]:
        """(tokens computed so far: sampled, read and trained; model calls in flight): signs of life between two
        events. Counts fall when a process that counted them died."""
        asked = [self.crew.handle(cell).stats.remote() for cell in self.crew.live]
        stats = await asyncio.gather(*asked, return_exceptions=True)
        known = [s for s in stats if not isinstance(s, BaseException)]
        tokens = {kind: int(sum(s[name] for s in known)) for kind, name in ENGINE_TOKENS.items()}
        tokens["trained"] = self.training.trained_tokens
        try:
            return tokens, len(await self.crew.hands.gateway.live.remote())
        except (*self.crew.hands.lost, StartingError):
            return tokens, 0

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

    def over(self, task: asyncio.Task[None]) -> None:
        """A task that failed fails the run. But one that failed with a process ends with it: its death is told by the
        supervisor, and withdraws what was asked of it."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, (*self.crew.hands.lost, StartingError)):
            return
        if isinstance(error, CoreLostError) and not isinstance(error.__cause__, RunError):
            self.lost(CORE, error.incarnation, str(error))
            return
        self.fail(error if isinstance(error, QwenGyreError) else failure(task.get_name(), error))

    def _cell_lost(self, cell: int, incarnation: int, reason: str) -> None:
        self.lost(cell, incarnation, reason)

    def _no_losses(self, cell: int, incarnation: int, reason: str) -> None:
        self.fail(RunError(f"cell {cell} (incarnation {incarnation}) failed: {reason}. Continue with --resume."))

    async def _cancel(self, tasks: set[asyncio.Task[None]]) -> None:
        feeds = [live.feed for live in self.crew.live.values() if live.feed is not None]
        for task in [*tasks, *feeds]:
            task.cancel()
        await asyncio.gather(*tasks, *feeds, return_exceptions=True)


def failure(name: str, error: BaseException) -> RunError:
    """One line for a task of the run that failed."""
    cause = str(error).strip().splitlines() or [type(error).__name__]
    run_error = RunError(f"'{name}' failed: {type(error).__name__}: {cause[-1]}. Continue with --resume.")
    run_error.__cause__ = error
    return run_error
