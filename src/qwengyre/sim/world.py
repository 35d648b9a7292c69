"""A World in virtual time: performs the scheduler's actions with durations of a Workload, losses of cells included.

The second implementation of the seam in `loop.py`. `next_event` never waits: it turns a heap of planned happenings.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qwengyre.errors import RunError
from qwengyre.loop import run
from qwengyre.schedule import actions as act
from qwengyre.schedule import events as ev
from qwengyre.schedule.state import Plan, State
from qwengyre.schedule.step import start
from qwengyre.sim.workload import Work, Workload
from qwengyre.types import ExecutionId, Role


@dataclass
class SimCell:
    """A cell. `life` grows with every change of role or restart: what was planned for an earlier one is void."""

    role: Role = Role.ROLLOUT
    incarnation: int = 0
    life: int = 0
    working: bool = False
    guests: dict[ExecutionId, None] = field(default_factory=dict[ExecutionId, None])


@dataclass
class SimLedger:
    """Micro-steps of the open step, as counts."""

    step: int = -1
    pending: int = 0
    claimed: int = 0
    counted: int = 0


class SimWorld:
    """See the module. All randomness comes from `rng`, drawn for executions in order of dispatch.

    With `lag`, that many events are always under way: the scheduler hears of things later than they happen.
    """

    def __init__(self, plan: Plan, workload: Workload, rng: np.random.Generator, lag: int = 0) -> None:
        self.now = 0.0
        self._plan, self._workload, self._lag = plan, workload, lag
        self._rng, self._failures = rng.spawn(2)
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._planned = 0
        self._events: deque[ev.Event] = deque()
        self._cells = [SimCell() for _ in range(plan.num_cells)]
        self._work: dict[ExecutionId, Work] = {}
        self._micro_steps: dict[int, int] = {}
        self._ledger = SimLedger()
        self._era = 0  # grows with every loss of the core and every roll-back
        self._newest_version = 0
        self._checkpoint = 0  # finished steps in the newest published weights
        self._report(ev.Started)
        for cell in range(plan.num_cells):
            self._report_ready(cell)
            self._plan_loss(cell)

    # --- the two methods of the seam -------------------------------------------------------------------------------

    def begin(self, actions: Sequence[act.Action]) -> None:
        """Plan what follows from each action."""
        for action in actions:
            if (do := self._DO.get(type(action))) is not None:
                do(self, action)

    async def next_event(self) -> ev.Event:
        """The next event in virtual time. Raises RunError when nothing can happen any more."""
        while self._heap and len(self._events) <= self._lag:
            self.now, _, happen = heapq.heappop(self._heap)
            happen()
        if not self._events:
            raise RunError(f"the simulated run stands still at {self.now:.0f} s: no event is planned")
        event = self._events.popleft()
        return self._roll_back() if isinstance(event, ev.RolledBack) else event

    # --- executions ------------------------------------------------------------------------------------------------

    def _dispatch(self, action: act.Dispatch) -> None:
        for group in range(action.first, action.first + action.count):
            self._micro_steps[group] = self._workload.group(self._rng)
            for member in range(self._plan.group_size):
                self._work[ExecutionId(group, member)] = self._workload.execution(self._rng)

    def _place(self, action: act.Place) -> None:
        self._report(ev.Placed, action.execution)
        self._house(action.execution, action.cell)

    def _rehome(self, action: act.Rehome) -> None:
        for execution, cell in action.homes:
            if execution not in self._work:
                continue  # it ended before its new home was known
            self._suspend(execution)
            self._cells[self._work[execution].home].guests.pop(execution, None)
            self._house(execution, cell)

    def _house(self, execution: ExecutionId, cell: int) -> None:
        self._work[execution].home = cell
        self._cells[cell].guests[execution] = None
        self._resume(execution)

    def _resume(self, execution: ExecutionId) -> None:
        work = self._work[execution]
        if self._cells[work.home].role is Role.ROLLOUT and work.resumed_at is None:
            work.resumed_at, pause = self.now, work.pause
            self._after(work.left_s, lambda: self._end(execution) if work.pause == pause else None)

    def _suspend(self, execution: ExecutionId) -> None:
        work = self._work[execution]
        if work.resumed_at is not None:
            work.left_s -= self.now - work.resumed_at
            work.resumed_at = None
            work.pause += 1

    def _end(self, execution: ExecutionId) -> None:
        work = self._work.pop(execution)
        del self._cells[work.home].guests[execution]
        self._report(ev.Ended, execution, work.ending)
        settled = (ev.Settled, execution, work.verdict, work.score)
        self._after(self._workload.settle_s, lambda: self._report(*settled))

    def _weigh(self, action: act.Weigh) -> None:
        weighed = (ev.Weighed, action.group, self._micro_steps[action.group], 0)
        self._after(self._workload.weigh_s, lambda: self._report(*weighed))

    # --- cells -----------------------------------------------------------------------------------------------------

    def _move(self, action: act.Move) -> None:
        cell, training = self._cells[action.cell], action.role is Role.TRAINING
        if cell.role is Role.LOST or action.incarnation not in (-1, cell.incarnation):
            return  # meant for one that died: its CellLost withdraws the move
        before = cell.role
        self._become(action.cell, Role.TO_TRAINING if training else Role.TO_ROLLOUT)
        fails = self._failures.random() < self._workload.failed_moves
        role = before if fails else action.role

        def arrive() -> None:
            self._become(action.cell, role)
            self._report(ev.Moved, action.cell, role)
            self._feed()

        self._after_in_life(
            action.cell, self._workload.to_training_s if training else self._workload.to_rollout_s, arrive
        )

    def _become(self, index: int, role: Role) -> None:
        """A new role: executions at home go on or are suspended, a claim returns."""
        cell = self._cells[index]
        cell.role = role
        cell.life += 1
        if cell.working:
            cell.working = False
            self._ledger.claimed -= 1
            self._ledger.pending += 1
            self._backlog()
        for execution in cell.guests:
            if role is Role.ROLLOUT:
                self._resume(execution)
            else:
                self._suspend(execution)

    def _plan_loss(self, cell: int) -> None:
        if self._workload.cell_life_s:
            incarnation = self._cells[cell].incarnation
            life_s = float(self._failures.exponential(self._workload.cell_life_s))
            self._after(life_s, lambda: self.lose(cell) if self._cells[cell].incarnation == incarnation else None)

    def lose(self, cell: int) -> None:
        """The cell dies now and restarts later; with the core, the run rolls back to its newest checkpoint."""
        if self._cells[cell].role is Role.LOST:
            return
        self._become(cell, Role.LOST)
        self._report(ev.CellLost, cell, self._cells[cell].incarnation)
        self._cells[cell].incarnation += 1
        if cell == 0:
            self._era += 1
        self._feed()
        self._after_in_life(cell, self._workload.restart_s, lambda: self._restart(cell))

    def _restart(self, cell: int) -> None:
        self._plan_loss(cell)
        if cell == 0:
            self._report(ev.RolledBack, self._checkpoint, self._newest_version)
        else:
            self._become(cell, Role.ROLLOUT)
            self._report_ready(cell)

    def _roll_back(self) -> ev.RolledBack:
        """Now, when the scheduler hears of it: what it asked before was still meant for the steps that are undone."""
        self._era += 1
        self._newest_version += 1
        self._ledger = SimLedger()
        for index, cell in enumerate(self._cells):
            cell.working = False
            if cell.role is not Role.LOST or index == 0:
                self._become(index, Role.ROLLOUT)
                self._report_ready(index)
        return ev.RolledBack(self.now, self._checkpoint, self._newest_version)

    # --- steps -----------------------------------------------------------------------------------------------------

    def _open_step(self, action: act.OpenStep) -> None:
        assert not self._ledger.pending + self._ledger.claimed, f"step {self._ledger.step} has work left"
        self._ledger = SimLedger(action.step)

    def _admit(self, action: act.Admit) -> None:
        assert action.step == self._ledger.step, f"step {action.step} is not open"
        self._ledger.pending += self._micro_steps[action.group]
        self._backlog()
        self._feed()

    def _feed(self) -> None:
        """Every idle training cell claims a micro-step."""
        for index, cell in enumerate(self._cells):
            if cell.role is Role.TRAINING and not cell.working and self._ledger.pending and self._core_lives():
                cell.working = True
                self._ledger.pending -= 1
                self._ledger.claimed += 1
                self._backlog()
                self._after_in_life(index, self._workload.micro_step_s, lambda cell=cell: self._count(cell))

    def _count(self, cell: SimCell) -> None:
        if self._core_lives():
            cell.working = False
            self._ledger.claimed -= 1
            self._ledger.counted += 1
            self._backlog()
            self._feed()

    def _core_lives(self) -> bool:
        return self._cells[0].role is not Role.LOST

    def _close_step(self, action: act.CloseStep) -> None:
        if not self._core_lives():
            return
        assert self._ledger.pending + self._ledger.claimed == 0, f"step {action.step} has work left"
        trained = self._ledger.counted > 0
        assert self._cells[0].role is Role.TRAINING or not trained, "the optimizer needs a core in training"
        self._in_era(self._workload.optimizer_s * trained, lambda: self._report(ev.StepClosed, action.step))

    def _publish(self, action: act.Publish) -> None:
        assert action.version > self._newest_version, f"version {action.version} was used before"
        self._newest_version = action.version
        if not self._core_lives():
            return

        def publish() -> None:
            self._checkpoint = action.step
            self._report(ev.Published, action.version)

        self._in_era(self._workload.publish_s, publish)

    # --- time ------------------------------------------------------------------------------------------------------

    def _after(self, seconds: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now + seconds, self._planned, happen))
        self._planned += 1

    def _after_in_life(self, cell: int, seconds: float, happen: Callable[[], None]) -> None:
        """Unless the cell changes its role or dies before."""
        life = self._cells[cell].life
        self._after(seconds, lambda: happen() if self._cells[cell].life == life else None)

    def _in_era(self, seconds: float, happen: Callable[[], None]) -> None:
        """Unless the core dies before."""
        era = self._era
        self._after(seconds, lambda: happen() if self._era == era else None)

    def _report(self, event: Callable[..., ev.Event], *fields: Any) -> None:
        self._events.append(event(self.now, *fields))

    def _report_ready(self, cell: int) -> None:
        self._report(ev.CellReady, cell, self._cells[cell].incarnation, self._plan.capacity)

    def _backlog(self) -> None:
        ledger = self._ledger
        self._report(ev.Backlog, ledger.step, ledger.pending, ledger.claimed, ledger.counted)

    _DO: dict[type[act.Action], Callable[["SimWorld", Any], None]] = {  # noqa: RUF012
        act.Dispatch: _dispatch,
        act.Place: _place,
        act.Rehome: _rehome,
        act.Move: _move,
        act.Weigh: _weigh,
        act.OpenStep: _open_step,
        act.Admit: _admit,
        act.CloseStep: _close_step,
        act.Publish: _publish,
    }


@dataclass
class Record:
    """The journal of a simulated run, in memory."""

    entries: list[tuple[ev.Event, tuple[act.Action, ...]]] = field(
        default_factory=list[tuple[ev.Event, tuple[act.Action, ...]]]
    )

    def append(self, event: ev.Event, actions: Sequence[act.Action], state: State) -> None:
        """Keep a line."""
        self.entries.append((event, tuple(actions)))


def simulate(plan: Plan, workload: Workload, rng: np.random.Generator) -> tuple[State, Record]:
    """A whole run in virtual time. Raises RunError when it cannot go on."""
    record = Record()
    state = asyncio.run(run(start(plan), (), SimWorld(plan, workload, rng), record))
    return state, record
