"""A World in virtual time: performs the scheduler's actions with the durations of a Workload, losses included.

The second implementation of the seam in `loop.py`. `next_event` never waits: it turns a heap of planned happenings.
Executions share the speed of their cell (`cell.py`); everything else takes a fixed time.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np

from qwengyre.errors import RunError
from qwengyre.schedule import actions as act
from qwengyre.schedule import events as ev
from qwengyre.schedule.state import Plan
from qwengyre.sim.cell import SimCell, Work
from qwengyre.sim.executions import Source
from qwengyre.sim.ledger import SimLedger
from qwengyre.sim.rates import Rates
from qwengyre.sim.workload import HOUR, Workload
from qwengyre.types import Ending, ExecutionId, Role, Verdict

VISITORS = 1_000_000
"""Executions of evaluations are drawn from the groups that begin here."""


@dataclass
class Tally:
    """What a run did, counted as it happens."""

    ended: int = 0
    timed_out: int = 0
    dropped: int = 0
    tokens: float = 0.0
    """Made by executions, whether or not they were trained."""
    trained_s: float = 0.0
    """Cell-seconds of micro-steps that were counted, and of the optimizer."""
    moved: int = 0
    """Executions that were given another home."""
    switches: int = 0
    """Moves of cells that ended in the role that was asked for."""


class SimWorld:
    """See the module. `seed` draws what goes wrong; executions come from `source`, in order of dispatch.

    With `lag`, that many events are always under way: the scheduler hears of things later than they happen.
    """

    def __init__(self, plan: Plan, workload: Workload, source: Source, seed: int = 0, lag: int = 0) -> None:
        self.now = 0.0
        self.tally = Tally()
        self._plan, self._workload, self._source, self._lag = plan, workload, source, lag
        self._failures = np.random.default_rng([seed, 2])
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._planned = 0
        self._events: deque[ev.Event] = deque()
        rates = Rates(workload.rate)
        self._timeout_s = workload.exec.timeout_h * HOUR
        self._active_clock = workload.exec.timeout_clock == "active"
        limit = self._timeout_s if self._active_clock else float("inf")
        self.cells = [SimCell(rates, limit) for _ in range(plan.num_cells)]
        self._changed = dict[int, None]()  # cells whose next end must be planned anew
        self._work: dict[ExecutionId, Work] = {}
        self._tokens: dict[int, float] = {}  # made by the members of a group that are to be trained
        self._micro_steps: dict[int, tuple[int, float]] = {}  # of a weighed group: how many, seconds of each
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
        while len(self._events) <= self._lag:
            self._plan_ends()
            if not self._heap:
                break
            self.now, _, happen = heapq.heappop(self._heap)
            happen()
        if not self._events:
            raise RunError(f"the simulated run stands still at {self.now:.0f} s: no event is planned")
        event = self._events.popleft()
        return self._roll_back() if isinstance(event, ev.RolledBack) else event

    # --- executions ------------------------------------------------------------------------------------------------

    def _dispatch(self, action: act.Dispatch) -> None:
        for group in range(action.first, action.first + action.count):
            drawn = self._source.group(group)
            self._tokens[group] = float("-inf") if drawn.weightless else 0.0
            for member, draw in enumerate(drawn.executions):
                execution = ExecutionId(group, member)
                self._work[execution] = Work(execution, draw)

    def _place(self, action: act.Place) -> None:
        work = self._work.get(action.execution) or self._visitor(action.execution)
        self._report(ev.Placed, action.execution)
        if not self._active_clock:
            self._after(self._timeout_s, lambda: self._end(work, timed_out=True))
        self._house(work, action.cell)
        self._go_on(work)

    def _visitor(self, execution: ExecutionId) -> Work:
        """An execution of an evaluation: like those of training, and of no group."""
        index, member = divmod(execution.member, self._plan.group_size)
        work = Work(execution, self._source.group(VISITORS + index).executions[member])
        return self._work.setdefault(execution, work)

    def _rehome(self, action: act.Rehome) -> None:
        for execution, cell in action.homes:
            if (work := self._work.get(execution)) is None:
                continue  # it ended before its new home was known
            self._leave(work)
            self._house(work, cell)
            self.tally.moved += 1
            stamp = work.stamp
            self._after(self._workload.cost.migrate_s, lambda w=work, s=stamp: self._go_on(w) if w.stamp == s else None)

    def _house(self, work: Work, cell: int) -> None:
        """It holds a slot there; it does not go on yet."""
        self.cells[cell].advance(self.now)
        work.home = cell
        self.cells[cell].guests[work.id] = work

    def _go_on(self, work: Work) -> None:
        self.cells[work.home].enter(work, self.now)
        self._changed[work.home] = None

    def _leave(self, work: Work) -> None:
        if work.id in self.cells[work.home].guests:
            self.cells[work.home].leave(work, self.now)
            self._changed[work.home] = None

    def _plan_ends(self) -> None:
        """Of each cell on which something changed, the next execution that ends."""
        for index in self._changed:
            cell = self.cells[index]
            cell.advance(self.now)
            cell.plan += 1
            if (end := cell.next_end()) is not None:
                self._after(
                    end.seconds, lambda c=cell, p=cell.plan, e=end: self._end_planned(c, p, e.work, e.timed_out)
                )
        self._changed.clear()

    def _end_planned(self, cell: SimCell, plan: int, work: Work, timed_out: bool) -> None:
        if cell.plan == plan:
            self._end(work, timed_out)

    def _end(self, work: Work, timed_out: bool) -> None:
        if self._work.pop(work.id, None) is None:
            return  # with the clock `wall`: it was over before
        self._leave(work)
        draw, tally = work.draw, self.tally
        tokens = draw.tokens_per_s * min(work.done_s, draw.work_s)
        tally.ended += 1
        tally.timed_out += timed_out
        tally.dropped += draw.dropped
        tally.tokens += tokens
        if not draw.dropped and work.id.group >= 0:
            self._tokens[work.id.group] += tokens
        late, over = Ending.HARNESS_TIMEOUT if timed_out else Ending.FINISHED, Ending.OVERALL_TIMEOUT
        self._report(ev.Ended, work.id, over if draw.dropped else late)
        verdict = Verdict.DROPPED if draw.dropped else Verdict.SCORED
        self._after(draw.settle_s, lambda: self._report(ev.Settled, work.id, verdict, 0.0))

    def _weigh(self, action: act.Weigh) -> None:
        train, tokens = self._workload.train, self._tokens[action.group]
        count = max(1, ceil(tokens / train.microstep_tokens)) if tokens >= 0 else 0
        seconds = max(0.0, tokens) / train.tokens_per_h_per_cell * HOUR
        self._micro_steps[action.group] = (count, seconds / max(1, count))
        weighed = (ev.Weighed, action.group, count, int(max(0.0, tokens)))
        self._after(self._workload.cost.weigh_s, lambda: self._report(*weighed))

    # --- cells -----------------------------------------------------------------------------------------------------

    def _move(self, action: act.Move) -> None:
        cell, training = self.cells[action.cell], action.role is Role.TRAINING
        if cell.role is Role.LOST or action.incarnation not in (-1, cell.incarnation):
            return  # meant for one that died: its CellLost withdraws the move
        before = cell.role
        self._become(action.cell, Role.TO_TRAINING if training else Role.TO_ROLLOUT)
        fails = self._failures.random() < self._workload.failures.failed_moves
        role = before if fails else action.role

        def arrive() -> None:
            self.tally.switches += not fails
            self._become(action.cell, role)
            self._report(ev.Moved, action.cell, role)
            if self._feed():
                self._backlog()

        cost = self._workload.cost
        self._after_in_life(action.cell, cost.to_train_s if training else cost.to_rollout_s, arrive)

    def _become(self, index: int, role: Role) -> None:
        """A new role: executions at home go on or are suspended in place, a claim returns."""
        cell = self.cells[index]
        cell.advance(self.now)
        cell.role = role
        cell.life += 1
        self._changed[index] = None
        if cell.claim is not None:
            self._ledger.give_back(cell.claim)
            cell.claim = None
            self._backlog()
        cell.frozen = False
        if role is Role.ROLLOUT:
            self._refresh(index)

    def _refresh(self, index: int) -> None:
        """The keys and values of its executions are made again."""
        cell, seconds = self.cells[index], self._workload.cost.refresh_s
        if not (seconds and cell.guests):
            return

        def thaw() -> None:
            cell.advance(self.now)
            cell.frozen = False
            self._changed[index] = None

        cell.advance(self.now)
        cell.frozen = True
        self._changed[index] = None
        self._after_in_life(index, seconds, thaw)

    def _plan_loss(self, cell: int) -> None:
        if life := self._workload.failures.cell_life_h:
            incarnation = self.cells[cell].incarnation
            life_s = float(self._failures.exponential(life * HOUR))
            self._after(life_s, lambda: self.lose(cell) if self.cells[cell].incarnation == incarnation else None)

    def lose(self, index: int) -> None:
        """The cell dies now and restarts later; with the core, the run rolls back to its newest checkpoint."""
        cell = self.cells[index]
        if cell.role is Role.LOST:
            return
        self._become(index, Role.LOST)
        for work in list(cell.guests.values()):
            self._leave(work)
        self._report(ev.CellLost, index, cell.incarnation)
        cell.incarnation += 1
        if index == 0:
            self._era += 1
        if self._feed():
            self._backlog()
        self._after_in_life(index, self._workload.failures.restart_s, lambda: self._restart(index))

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
        for index, cell in enumerate(self.cells):
            cell.claim = None
            for work in list(cell.guests.values()):
                self._leave(work)
            if cell.role is not Role.LOST or index == 0:
                self._become(index, Role.ROLLOUT)
                self._report_ready(index)
        return ev.RolledBack(self.now, self._checkpoint, self._newest_version)

    # --- steps -----------------------------------------------------------------------------------------------------

    def _open_step(self, action: act.OpenStep) -> None:
        assert not self._ledger.open, f"step {self._ledger.step} has work left"
        self._ledger = SimLedger(action.step)

    def _admit(self, action: act.Admit) -> None:
        assert action.step == self._ledger.step, f"step {action.step} is not open"
        count, seconds = self._micro_steps[action.group]
        self._ledger.pending.extend([seconds] * count)
        self._feed()
        self._backlog()

    def _feed(self) -> bool:
        """Every idle training cell claims a micro-step. Did one?"""
        fed = False
        for index, cell in enumerate(self.cells):
            if not (self._ledger.pending and self._core_lives()):
                break
            if cell.role is Role.TRAINING and cell.claim is None:
                cell.claim, fed = self._ledger.claim(), True
                self._after_in_life(index, cell.claim, lambda c=cell: self._count(c))
        return fed

    def _count(self, cell: SimCell) -> None:
        if self._core_lives():
            self.tally.trained_s += cell.claim or 0.0
            cell.claim = None
            self._ledger.count()
            self._feed()
            self._backlog()

    def _core_lives(self) -> bool:
        return self.cells[0].role is not Role.LOST

    def _close_step(self, action: act.CloseStep) -> None:
        if not self._core_lives():
            return
        assert not self._ledger.open, f"step {action.step} has work left"
        trained = self._ledger.counted > 0
        assert self.cells[0].role is Role.TRAINING or not trained, "the optimizer needs a core in training"
        seconds = self._workload.train.opt_s * trained
        self.tally.trained_s += seconds
        self._in_era(seconds, lambda: self._report(ev.StepClosed, action.step))

    def _publish(self, action: act.Publish) -> None:
        assert action.version > self._newest_version, f"version {action.version} was used before"
        self._newest_version = action.version
        if not self._core_lives():
            return

        def publish() -> None:
            self._checkpoint = action.step
            for index, cell in enumerate(self.cells):
                if cell.role is Role.ROLLOUT:
                    self._refresh(index)
            self._report(ev.Published, action.version)

        self._in_era(self._workload.cost.publish_s, publish)

    # --- time ------------------------------------------------------------------------------------------------------

    def _after(self, seconds: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now + seconds, self._planned, happen))
        self._planned += 1

    def _after_in_life(self, cell: int, seconds: float, happen: Callable[[], None]) -> None:
        """Unless the cell changes its role or dies before."""
        life = self.cells[cell].life
        self._after(seconds, lambda: happen() if self.cells[cell].life == life else None)

    def _in_era(self, seconds: float, happen: Callable[[], None]) -> None:
        """Unless the core dies before."""
        era = self._era
        self._after(seconds, lambda: happen() if self._era == era else None)

    def _report(self, event: Callable[..., ev.Event], *fields: Any) -> None:
        self._events.append(event(self.now, *fields))

    def _report_ready(self, cell: int) -> None:
        self._report(ev.CellReady, cell, self.cells[cell].incarnation, self._plan.capacity)

    def _backlog(self) -> None:
        ledger = self._ledger
        self._report(ev.Backlog, ledger.step, len(ledger.pending), ledger.claimed, ledger.counted)

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
