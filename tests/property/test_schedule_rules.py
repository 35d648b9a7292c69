"""Random plans, durations, losses, crashes and noise: the rules hold after every event, and every run ends."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qwengyre.schedule import actions as act
from qwengyre.schedule import events as ev
from qwengyre.schedule.codec import decode_action, decode_event, encode
from qwengyre.schedule.plan import NAMES, When
from qwengyre.schedule.state import NOWHERE, Evaluations, Life, Phase, Plan, Stage, State
from qwengyre.schedule.step import asked, open_executions, start, step
from qwengyre.schedule.waiting import waiting
from qwengyre.sim.cell import SimCell
from qwengyre.sim.executions import Drawn
from qwengyre.sim.ledger import SimLedger
from qwengyre.sim.workload import HOUR, Cost, Exec, Failures, Rate, Train, Workload
from qwengyre.sim.world import SimWorld
from qwengyre.types import Ending, Role, Verdict

MOST_EVENTS = 20_000
FOR_EVER = 1e9
OVERFULL = (When.ROOM_OR_BURST, When.SHARE)
QUICK = settings(
    max_examples=250, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], database=None
)


@dataclass(frozen=True)
class Case:
    """Everything that makes one run. `str` of it reproduces a failure."""

    plan: Plan
    work: Workload
    seed: int
    lag: int = 0
    losses: int = 0
    crashes: int = 0
    noise: float = 0.0
    capacities: bool = False


class World(SimWorld):
    """A simulated world with a limit on losses, which can also die with its driver."""

    def __init__(self, case: Case) -> None:
        self.losses = case.losses
        super().__init__(case.plan, case.work, Drawn(case.work, case.plan, case.seed), case.seed, case.lag)

    def lose(self, cell: int) -> None:
        if self.losses:
            self.losses -= 1
            super().lose(cell)

    def crash(self, state: State) -> list[ev.Event]:
        """Driver, cells and boxes are gone. What a new driver tells the scheduler, the losses of executions first."""
        running, unsettled = open_executions(state)
        losses: list[ev.Event] = [ev.Ended(self.now, e, Ending.LOST) for e in running]
        losses += [ev.Settled(self.now, e, Verdict.DROPPED, 0.0) for e in (*running, *unsettled)]
        for execution in running:
            self._work.pop(execution, None)
        self._heap.clear()
        self._events.clear()
        self.cells = [
            SimCell(cell.rates, cell.timeout_s, incarnation=cell.incarnation + 1, at=self.now) for cell in self.cells
        ]
        self._ledger = SimLedger()
        self._era += 1
        self._newest_version = state.next_version
        self._checkpoint = int(self._failures.integers(0, self._checkpoint + 1))  # an older one, also inside a burst
        back = ev.RolledBack(self.now, self._checkpoint, self._newest_version)
        ready = [ev.CellReady(self.now, i, cell.incarnation, self._plan.capacity) for i, cell in enumerate(self.cells)]
        for cell in range(self._plan.num_cells):
            self._plan_loss(cell)
        order = [back, *losses] if self._failures.random() < 0.5 else [*losses, back]
        return [*order, *ready]


@dataclass
class Watch:
    """Checks every transition against the rules, and keeps the journal."""

    case: Case
    state: State
    entries: list[tuple[ev.Event, tuple[act.Action, ...]]] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    inside: dict[int, int] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)

    def step(self, event: ev.Event) -> tuple[act.Action, ...]:
        before = self.state
        self.state, actions = step(before, event)
        self.entries.append((event, actions))
        self.check_actions(before, event, actions)
        self.check_state(before, event)
        return actions

    def check_actions(self, before: State, event: ev.Event, actions: tuple[act.Action, ...]) -> None:
        ids = {action.id for action in actions}
        assert len(ids) == len(actions)
        assert not ids & self.ids, "an id is unique in a run"
        self.ids |= ids
        if isinstance(event, ev.RolledBack):
            assert event.version > before.version
            self.inside = {group: at for group, at in self.inside.items() if at < event.step}
        for action in actions:
            self.check_evaluation(action)
            match action:
                case act.Dispatch():
                    evaluated = before.phase is Phase.EVALUATING and isinstance(event, ev.Settled)
                    assert evaluated or isinstance(event, ev.Started | ev.Published | ev.RolledBack), "at a boundary"
                case act.Place(cell=cell):
                    assert cell in self.state.rollout or self.state.training, "placed, then perhaps lent"
                case act.Move(role=Role.TRAINING):
                    self.check_lent(action)
                case act.Admit(group=group, step=at):
                    self.check_admitted(group, at)
                case act.CloseStep(step=at):
                    self.check_closed(at)
                case act.Publish(version=version):
                    assert not self.state.in_transit
                    assert version == self.state.next_version - 1 > self.state.version
                    assert before.next_version == version
                case act.Void(group=group):
                    assert self.state.plan.group_size - self.state.groups[group].dropped < 2
                case _:
                    pass

    def check_evaluation(self, action: act.Action) -> None:
        match action:
            case act.Place():
                self.check_placed(action)
            case act.Evaluated():
                self.check_evaluated(action)
            case act.OpenStep():
                assert self.state.evaluation is None, "no step is open while weights are evaluated"
            case _:
                pass

    def check_placed(self, place: act.Place) -> None:
        """An execution of an evaluation begins in it, and before every queued one of a group."""
        state, execution = self.state, place.execution
        if execution.evaluation >= 0:
            assert state.evaluation is not None
            assert execution.evaluation == state.evaluation.number
            assert not any(cell.role is Role.TO_TRAINING for cell in state.cells)
        else:
            assert state.evaluation is None or not state.evaluation.queued

    def check_evaluated(self, action: act.Evaluated) -> None:
        """Each of its slots has a settlement, all of weights with the same steps."""
        slots: set[int] = set()
        for event, actions in self.entries:
            if isinstance(event, ev.Settled) and event.execution.evaluation == action.evaluation:
                slots.add(event.execution.member % self.state.plan.evaluations.count)
            for begun in actions:
                if isinstance(begun, act.Evaluate) and begun.evaluation == action.evaluation:
                    slots.clear()
                    assert begun.step == action.step
        assert len(slots) == self.state.plan.evaluations.count
        assert self.state.step == action.step

    def check_lent(self, move: act.Move) -> None:
        state, policy = self.state, self.state.plan.policy
        assert state.phase is not Phase.EVALUATING
        arriving = [i for i in state.in_transit if state.cells[i].role is Role.TO_TRAINING]
        assert policy.lockstep or arriving == [move.cell], "transfers are serial"
        assert not any(cell.role is Role.TO_ROLLOUT for cell in state.cells), "a transfer is under way"
        assert not state.core_lost
        if move.cell < policy.least:
            return
        assert state.pending or (state.trained and move.cell == 0), "data that nobody has claimed"
        if not policy.lockstep and state.pending:
            assert state.pending >= policy.gate * (len(state.training) - 1), "enough of them for another cell"
        if policy.when is When.DRAINED:
            assert state.waterlevel == 0, "nothing is live"
        if policy.when in (When.STEP, When.BURST, When.DRAINED):
            assert state.room == 0, "the step has all its groups"
        if policy.when is When.ROOM:
            assert not state.queued
            assert not state.homeless
            assert not state.cells[move.cell].homes
            assert state.waterlevel <= state.rollout_capacity  # without the lent cell: w <= C_R - C_e

    def check_admitted(self, group: int, at: int) -> None:
        assert group >= 0, "an evaluation is never trained"
        assert group not in self.inside, "a group enters one step"
        self.inside[group] = at
        assert at == self.state.step
        assert 0 <= at - self.state.groups[group].born <= self.state.plan.max_staleness

    def check_closed(self, at: int) -> None:
        state = self.state
        groups = [group for group in state.groups.values() if group.step == at]
        assert len(groups) == state.admitted
        assert state.counted == sum(group.micro_steps for group in groups)
        released = [g for g in state.groups.values() if g.stage not in (Stage.VOID, Stage.ADMITTED) and g.born <= at]
        assert len(groups) == state.plan.groups_per_step or not released, "only void groups make a step smaller"

    def check_state(self, before: State, event: ev.Event) -> None:
        state = self.state
        live = [i for i in range(state.plan.cells) if state.cells[i].role is not Role.LOST]
        # A move that fails may leave a gap: among cells that move together, or in the publish after which all return.
        returning = (Phase.ENDING, Phase.PUBLISHING, Phase.EVALUATING, Phase.DONE)
        together = state.plan.policy.lockstep or state.phase in returning
        gap = self.case.work.failures.failed_moves and together
        assert gap or list(state.training) == live[: len(state.training)], "training cells: a prefix of the live ones"
        assert len(state.training) <= state.plan.most_training
        assert min(state.groups, default=0) >= 0
        dispatched = before.phase is Phase.EVALUATING and state.evaluation is None
        if not (dispatched or isinstance(event, ev.Started | ev.Published | ev.RolledBack)):
            assert state.waterlevel <= before.waterlevel, "w never rises inside a burst"
        if state.next_group > before.next_group:
            assert state.outstanding <= state.plan.depth, "dispatch never passes Qb"
            left = (state.plan.steps - state.step) * state.plan.groups_per_step
            assert state.outstanding <= left, "nor what the run still takes"
        assert state.version >= before.version
        assert state.next_version >= before.next_version
        self.check_homes()

    def check_homes(self) -> None:
        state = self.state
        homes = {e: x.home for e, x in state.executions.items() if x.life is not Life.ENDED}
        assert {e for e, home in homes.items() if home == NOWHERE} == set(state.homeless)
        for i, cell in enumerate(state.cells):
            assert {e for e, home in homes.items() if home == i} == set(cell.homes)
            if not self.case.capacities:
                assert len(cell.homes) <= cell.capacity
        assert len(homes) + state.queued == state.waterlevel
        live = [g for g in state.groups.values() if g.stage not in (Stage.VOID, Stage.ADMITTED)]
        assert Counter(g.born for g in live) == Counter(dict(state.cohorts.items()))
        suspended = any(state.cells[i].homes for i in state.training) and state.plan.policy.when in OVERFULL
        if (state.queued or state.homeless or suspended) and state.phase is not Phase.DONE:
            assert all(state.cells[i].free <= 0 for i in state.rollout), "nobody waits while there is a place"


def stale(event: ev.Event, state: State) -> bool:
    """May `event`, seen before, come again without meaning anything?"""
    match event:
        case ev.Started() | ev.Placed() | ev.Ended() | ev.Settled() | ev.Weighed():
            return True
        case ev.StepClosed(step=at) | ev.Backlog(step=at):
            return at < state.step
        case ev.Published(version=version):
            return version < state.next_version - 1
        case ev.CellReady() | ev.CellLost():
            return event.incarnation < state.cells[event.cell].incarnation
        case _:
            return False


async def play(case: Case) -> Watch:
    """A whole run, with stale events, new capacities and crashes of the driver at random moments."""
    world, watch = World(case), Watch(case, start(case.plan))
    rng = np.random.default_rng(case.seed + 1)
    crashes = sorted(rng.integers(5, 200, size=case.crashes).tolist())
    while not watch.state.done:
        assert len(watch.entries) < MOST_EVENTS, waiting(watch.state)
        event = await world.next_event()
        world.begin(watch.step(event))
        if rng.random() < case.noise:
            noise(watch, rng)
        if case.capacities and rng.random() < 0.05:
            cell, capacity = int(rng.integers(case.plan.num_cells)), int(rng.integers(1, case.plan.capacity + 1))
            world.begin(watch.step(ev.Capacity(world.now, cell, capacity)))
        if crashes and len(watch.entries) > crashes[0] and not watch.state.done:
            del crashes[0]
            resume(watch, world)
        assert watch.state.done or waiting(watch.state)
    return watch


def noise(watch: Watch, rng: np.random.Generator) -> None:
    """An old event comes again: nothing changes."""
    event = watch.entries[int(rng.integers(len(watch.entries)))][0]
    if stale(event, watch.state):
        state, actions = step(watch.state, event)
        assert actions == ()
        assert state == watch.state


def resume(watch: Watch, world: World) -> None:
    """The driver dies and resumes: the journal gives the state, what was asked is begun again."""
    assert replayed(watch) == watch.state
    for event in world.crash(watch.state):
        actions = watch.step(event)
        world.begin([action for action in actions if isinstance(action, act.Dispatch)])
    world.begin(asked(watch.state))


def replayed(watch: Watch) -> State:
    """The journal as it would be written and read, folded again."""
    state = start(watch.case.plan)
    for event, actions in watch.entries:
        state, again = step(state, decode_event(encode(event)))
        assert again == tuple(decode_action(encode(action)) for action in actions)
    return state


def check_end(watch: Watch) -> None:
    state = watch.state
    assert state.step == state.plan.steps
    given_up = {execution for life in open_executions(state) for execution in life}
    assert state.waterlevel == state.visitors
    assert all(0 <= execution.evaluation < state.next_evaluation - 1 for execution in given_up), "of gone weights"
    check_evaluations(watch)
    assert {entry.action.type for entry in state.asked.values()} <= {"move"}
    for index, group in state.groups.items():
        assert group.stage in (Stage.ADMITTED, Stage.VOID), f"group {index} was neither trained nor void"
        assert (index in watch.inside) == (group.stage is Stage.ADMITTED)
    assert replayed(watch) == state
    if not (watch.case.crashes or watch.case.losses or state.plan.phi):
        check_sizes(watch)


def check_evaluations(watch: Watch) -> None:
    """Of the weights that the end comes from, each that was to be evaluated was, once. (Where a return was to the
    middle of a burst, these weights count as evaluated if later ones were: real checkpoints are never there.)"""
    plan, evaluated, due, newest, asked = watch.state.plan, list[int](), list[int](), -1, 0
    for event, actions in watch.entries:
        if isinstance(event, ev.RolledBack):
            evaluated, due = ([at for at in steps if at <= event.step] for steps in (evaluated, due))
            newest, asked = min(newest, event.step), event.step
        if isinstance(event, ev.Started | ev.RolledBack | ev.Published) and plan.evaluations.due(
            asked, plan.steps, newest
        ):
            due.append(asked)
            newest = asked
        asked = next((action.step for action in actions if isinstance(action, act.Publish)), asked)
        evaluated += [action.step for action in actions if isinstance(action, act.Evaluated)]
    assert evaluated == due, "evaluated, and due"


def check_sizes(watch: Watch) -> None:
    """Without look-ahead every step has B groups, less the void ones of its burst."""
    state = watch.state
    sizes = Counter(group.step for group in state.groups.values() if group.stage is Stage.ADMITTED)
    for first in range(0, state.plan.steps, state.plan.mu):
        steps = range(first, min(first + state.plan.mu, state.plan.steps))
        void = sum(1 for g in state.groups.values() if g.stage is Stage.VOID and g.born == first)
        assert sum(sizes[s] for s in steps) == len(steps) * state.plan.groups_per_step - void


def rarely(*values: float) -> st.SearchStrategy[float]:
    return st.sampled_from(values)


def hours(*seconds: float) -> st.SearchStrategy[float]:
    return st.sampled_from([s / HOUR for s in seconds])


TOKENS_PER_H = 3600.0
"""One a second: a micro-step of the default throughput takes as many seconds as it has tokens."""
WORK = st.builds(
    Workload,
    exec=st.builds(
        Exec,
        median_h=hours(20.0, 100.0),
        sigma_within=rarely(0.1, 1.5),
        sigma_group=rarely(0.0, 1.0),
        timeout_h=hours(1000.0, 60.0),
        timeout_clock=st.sampled_from(["active", "wall"]),
        tokens_per_h=st.just(TOKENS_PER_H),
    ),
    rate=st.builds(Rate, env_frac=rarely(1.0, 0.4), alpha=rarely(0.0, 0.5)),
    train=st.builds(
        Train,
        tokens_per_h_per_cell=st.sampled_from([TOKENS_PER_H * 10, TOKENS_PER_H * 1e9]),
        microstep_tokens=st.sampled_from([1000, 50]),
        opt_s=rarely(0.0, 20.0),
    ),
    cost=st.builds(
        Cost,
        settle_s=rarely(0.0, 10.0, 300.0),
        weigh_s=rarely(0.0, 5.0),
        publish_s=rarely(0.0, 20.0),
        to_train_s=rarely(8.0, 0.0, 400.0),
        to_rollout_s=rarely(3.0, 0.0, 400.0),
        migrate_s=rarely(0.0, 5.0),
        refresh_s=rarely(0.0, 7.0),
    ),
    failures=st.builds(
        Failures,
        dropped=rarely(0.0, 0.2, 0.7),
        weightless=rarely(0.0, 0.3, 1.0),
        slow_verifiers=rarely(0.0, 0.3),
        slow_s=st.just(500.0),
        failed_moves=rarely(0.0, 0.2),
        cell_life_h=hours(0.0, 60.0, 600.0),
        restart_s=rarely(0.0, 30.0, 500.0),
    ),
)


EVALUATIONS = st.builds(
    Evaluations,
    count=st.sampled_from([0, 1, 4, 12]),
    every=st.integers(0, 3),
    before=st.booleans(),
    after=st.booleans(),
)


@st.composite
def plans(draw: st.DrawFn, kinds: tuple[str, ...] = tuple(NAMES)) -> Plan:
    kind = draw(st.sampled_from(kinds))
    standalone, cells = draw(st.integers(0, 2)), draw(st.integers(1, 4))
    if kind.startswith("async") and cells == 1:
        standalone = max(1, standalone)
    training = 1 if cells == 1 else draw(st.integers(1, cells - 1))
    letters = {"groups_per_step": (1, 3), "group_size": (2, 3), "steps": (1, 5), "capacity": (1, 5)}
    letters |= {"mu": (1, 2), "phi": (0, 2), "slack": (0, 2)}
    drawn: dict[str, Any] = {name: draw(st.integers(*bounds)) for name, bounds in letters.items()}
    drawn["evaluations"] = draw(EVALUATIONS)
    if drawn["evaluations"].count and drawn["evaluations"].before and draw(st.integers(0, 9)) == 0:
        drawn["steps"] = 0
    return Plan.for_policy(kind, training=training, cells=cells, standalone=standalone, **drawn)


CASES = st.builds(
    Case,
    plan=plans(),
    work=WORK,
    seed=st.integers(0, 2**16),
    lag=st.sampled_from([0, 0, 1, 5]),
    losses=st.integers(0, 6),
    crashes=st.integers(0, 2),
    noise=rarely(0.0, 0.3),
    capacities=st.booleans(),
)


@QUICK
@given(CASES)
def test_rules_hold_and_every_run_ends(case: Case) -> None:
    check_end(asyncio.run(play(case)))


@QUICK
@given(
    plans(kinds=("elastic",)),
    WORK,
    st.integers(0, 2**16),
    st.integers(1, 4),
)
def test_elastic_ends_without_its_satellites(plan: Plan, work: Workload, seed: int, losses: int) -> None:
    """All cells but the core may die for good."""

    class CoreLives(World):
        def lose(self, cell: int) -> None:
            if cell:
                super().lose(cell)

    async def play_alone() -> State:
        deadly = {"cell_life_h": 60.0 / HOUR, "restart_s": FOR_EVER, "failed_moves": 0.0}
        alone = work.model_copy(update={"failures": work.failures.model_copy(update=deadly)})
        case = Case(plan, alone, seed, losses=losses)
        world, watch = CoreLives(case), Watch(case, start(plan))
        while not watch.state.done:
            world.begin(watch.step(await world.next_event()))
        return watch.state

    assert asyncio.run(play_alone()).at < FOR_EVER, "the run waited for a cell that never came back"
