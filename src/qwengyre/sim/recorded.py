"""A recorded run as a trace: what each execution worked, what everything else took, and the run's own numbers.

Read from the scheduler's journal alone (events and actions). An execution works while it is placed at a cell that rolls
out; how much it gets done there depends on who else does (`rates`), exactly as in the simulator.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from qwengyre.errors import ConfigError
from qwengyre.schedule import actions as act
from qwengyre.schedule import events as ev
from qwengyre.schedule.plan import Evaluations, Plan
from qwengyre.schedule.state import Stage, State
from qwengyre.schedule.step import start, step
from qwengyre.sim.cell import SimCell, Work
from qwengyre.sim.executions import Draw, GroupDraw
from qwengyre.sim.rates import Rates
from qwengyre.sim.run import Result
from qwengyre.sim.workload import HOUR, Rate, Workload
from qwengyre.types import Ending, ExecutionId, Role, Verdict

Entry = tuple[ev.Event, tuple[act.Action, ...]]
FOR_EVER = float("inf")
_UNKNOWN = Draw(0.0, 0.0)


@dataclass(frozen=True)
class Recorded:
    """`workload` has what was measured in place of parameters; `result` the run's own numbers; `source` its groups."""

    plan: Plan
    workload: Workload
    result: Result
    source: "RecordedGroups"
    active_s: float
    """Seconds that executions were active, all together."""


class RecordedGroups:
    """The groups of a recorded run, in order of dispatch; a run that needs more begins again at the first."""

    def __init__(self, groups: list[GroupDraw]) -> None:
        self._groups = groups

    def group(self, index: int) -> GroupDraw:
        """See `executions.Source`."""
        return self._groups[index % len(self._groups)]


@dataclass
class _Times:
    """Durations of one kind."""

    total: float = 0.0
    count: int = 0

    def add(self, seconds: float) -> None:
        self.total += max(0.0, seconds)
        self.count += 1

    @property
    def mean(self) -> float:
        return self.total / max(1, self.count)


@dataclass
class _Walk:
    """The journal, folded once."""

    plan: Plan
    rates: Rates
    state: State
    cells: list[SimCell]
    work: dict[ExecutionId, Work] = field(default_factory=dict[ExecutionId, Work])
    ended: dict[ExecutionId, ev.Ended] = field(default_factory=dict[ExecutionId, ev.Ended])
    settled: dict[ExecutionId, ev.Settled] = field(default_factory=dict[ExecutionId, ev.Settled])
    weighed: dict[int, ev.Weighed] = field(default_factory=dict[int, ev.Weighed])
    took: dict[str, _Times] = field(default_factory=lambda: defaultdict(_Times))
    claimed_s: float = 0.0
    moved: int = 0
    switches: int = 0
    begun: float = 0.0
    closed: float = 0.0

    def see(self, event: ev.Event, actions: tuple[act.Action, ...]) -> None:
        before = self.state
        # a micro-step stays claimed until its gradient is at the core; a cell works on one at a time
        working = min(before.claimed, sum(cell.role is Role.TRAINING for cell in before.cells))
        self.claimed_s += working * (max(before.at, event.at) - before.at)
        self._time(before, event)
        self.state, _ = step(before, event)
        now = self.state.at
        for cell, mine in zip(self.state.cells, self.cells, strict=True):
            role = cell.role if cell.incarnation >= 0 else Role.LOST
            if role is not mine.role:
                mine.advance(now)
                mine.role = role
        match event:
            case ev.CellReady(incarnation=0):
                self.begun = now
                for cell in self.cells:
                    cell.role_s.clear()  # the run begins when all cells are there
                    cell.at = now
            case ev.Ended():
                self.ended[event.execution] = event
                self._leave(event.execution, now)
            case ev.Settled():
                self.settled[event.execution] = event
            case ev.Weighed():
                self.weighed[event.group] = event
            case ev.Published():
                self.closed = now
            case _:
                pass
        for action in actions:
            self._follow(action, now)

    def _time(self, before: State, event: ev.Event) -> None:
        """How long an answer took."""
        about = {
            ev.StepClosed: "close",
            ev.Published: "publish",
            ev.Weighed: f"weigh {getattr(event, 'group', '')}",
            ev.Moved: f"move {getattr(event, 'cell', '')}",
        }.get(type(event))
        if about is None or (asked := before.asked.get(about)) is None:
            return
        kind = about.split()[0]
        if isinstance(asked.action, act.Move) and isinstance(event, ev.Moved):
            kind = f"to {asked.action.role}"
            self.switches += asked.action.role is event.role
        self.took[kind].add(event.at - asked.at)

    def _follow(self, action: act.Action, now: float) -> None:
        if isinstance(action, act.Place):
            self.work[action.execution] = Work(action.execution, Draw(FOR_EVER, 0.0))
            self._enter(action.execution, action.cell, now)
        elif isinstance(action, act.Rehome):
            for execution, cell in action.homes:
                self._leave(execution, now)
                self._enter(execution, cell, now)
                self.moved += 1

    def _enter(self, execution: ExecutionId, cell: int, now: float) -> None:
        work = self.work[execution]
        work.home = cell
        self.cells[cell].advance(now)
        self.cells[cell].guests[execution] = work
        self.cells[cell].enter(work, now)

    def _leave(self, execution: ExecutionId, now: float) -> None:
        work = self.work.get(execution)
        if work is not None and execution in self.cells[work.home].guests:
            self.cells[work.home].leave(work, now)

    def draw(self, group: int) -> GroupDraw | None:
        """What was recorded of a group; None if it was not settled and weighed."""
        members = [ExecutionId(group, member) for member in range(self.plan.group_size)]
        void = group in self.state.groups and self.state.groups[group].stage is Stage.VOID
        if not all(m in self.settled and m in self.work for m in members) or not (void or group in self.weighed):
            return None
        found = self.weighed.get(group)
        done = sum(self.work[m].done_s for m in members if self.settled[m].verdict is not Verdict.DROPPED)
        pace = found.tokens / done if found and done else 0.0
        return GroupDraw(tuple(self._execution(m, pace) for m in members), bool(found and not found.micro_steps))

    def _execution(self, execution: ExecutionId, pace: float) -> Draw:
        """One that was ended by its time-out might have gone on for ever."""
        ended, settled = self.ended[execution], self.settled[execution]
        endless, dropped = ended.ending is Ending.HARNESS_TIMEOUT, settled.verdict is Verdict.DROPPED
        return Draw(
            FOR_EVER if endless else self.work[execution].done_s,
            0.0 if dropped else pace,
            dropped,
            max(0.0, settled.at - ended.at),
        )


def recorded(plan: Plan, entries: Iterable[Entry], rate: Rate, timeout_s: float = FOR_EVER) -> Recorded:
    """A run from its journal. `timeout_s` = the active time that an execution has. Raises ConfigError for a run without
    a finished step."""
    rates = Rates(rate)
    walk = _Walk(plan, rates, start(plan), [SimCell(rates, FOR_EVER, Role.LOST) for _ in range(plan.num_cells)])
    for event, actions in entries:
        walk.see(event, actions)
        if walk.state.done:
            break
    groups = [draw for g in range(walk.state.next_group) if (draw := walk.draw(g)) is not None]
    if not walk.closed or not groups:
        raise ConfigError("the run has published no weights yet, there is nothing to replay: wait for its first burst")
    steps = walk.state.version and walk.state.step
    whole = replace(plan, steps=max(1, steps), evaluations=Evaluations())
    active_s = sum(work.active_s for work in walk.work.values())
    workload, result = _workload(walk, whole, rate, timeout_s), _result(walk, whole)
    return Recorded(whole, workload, result, RecordedGroups(groups), active_s)


def _workload(walk: _Walk, plan: Plan, rate: Rate, timeout_s: float) -> Workload:
    """Parameters as measured. What is drawn from them comes from the trace instead."""
    tokens = sum(w.tokens for w in walk.weighed.values())
    micro_steps = sum(w.micro_steps for w in walk.weighed.values())
    seconds = walk.claimed_s or 1.0
    trained = sum(walk.weighed[g].tokens for g, group in walk.state.groups.items() if group.step >= 0)
    sections: dict[str, Any] = {
        "name": "recorded",
        "cluster": {"cells": plan.cells, "standalone": plan.standalone, "slots_per_cell": plan.capacity},
        "rl": {
            "steps": plan.steps,
            "groups_per_step": plan.groups_per_step,
            "execs_per_group": plan.group_size,
            "mu": plan.mu,
            "phi": plan.phi,
            "stale_slack": plan.slack,
        },
        "exec": {"timeout_h": min(timeout_s, 1e9) / HOUR},
        "rate": rate,
        "train": {
            "tokens_per_h_per_cell": max(1e-9, trained / seconds * HOUR),
            "microstep_tokens": max(1, round(tokens / max(1, micro_steps))),
            "opt_s": walk.took["close"].mean,
        },
        "cost": {
            "to_train_s": walk.took["to training"].mean,
            "to_rollout_s": walk.took["to rollout"].mean,
            "publish_s": walk.took["publish"].mean,
            "weigh_s": walk.took["weigh"].mean,
        },
    }
    return Workload.model_validate(sections)


def _result(walk: _Walk, plan: Plan) -> Result:
    """The columns of the simulator, of what happened."""
    for cell in walk.cells:
        cell.advance(walk.closed)
    seconds = walk.closed - walk.begun
    groups = [group for group in walk.state.groups.values() if 0 <= group.step < plan.steps]
    staleness = [group.step - group.born for group in groups]
    busy = walk.claimed_s + walk.took["close"].total
    training = sum(c.role_s.get(r, 0.0) for c in walk.cells for r in Role if r not in (Role.ROLLOUT, Role.LOST))
    slots = sum(cell.role_s.get(Role.ROLLOUT, 0.0) for cell in walk.cells) * plan.capacity
    whole, ended = seconds * plan.num_cells, max(1, len(walk.ended))
    return Result(
        policy="recorded",
        hours=seconds / HOUR,
        hours_per_step=seconds / HOUR / plan.steps,
        tokens=float(sum(w.tokens for w in walk.weighed.values())),
        timed_out=sum(e.ending is Ending.HARNESS_TIMEOUT for e in walk.ended.values()) / ended,
        mean_staleness=sum(staleness) / max(1, len(staleness)),
        max_staleness=max(staleness, default=0),
        train_busy=busy / whole,
        train_idle=max(0.0, training - busy) / whole,
        slot_fill=sum(cell.guest_s for cell in walk.cells) / slots if slots else 0.0,
        moves_per_execution=walk.moved / ended,
        switches=walk.switches,
        lower_bound_hours=0.0,
    )


def errors(real: Result, again: Result) -> list[tuple[str, float, float, float]]:
    """(quantity, recorded, simulated, relative error); absolute where the recorded one is 0."""
    names = ("hours", "tokens", "mean_staleness", "max_staleness", "timed_out", "train_busy", "train_idle", "slot_fill")
    rows = list[tuple[str, float, float, float]]()
    for name in (*names, "moves_per_execution", "switches"):
        was, now = float(getattr(real, name)), float(getattr(again, name))
        rows.append((name, was, now, (now - was) / was if was else now))
    return rows
