"""The simulated world performs actions with durations, and breaks as asked."""

import asyncio

import pytest

from qwengyre.errors import RunError
from qwengyre.schedule import actions as act
from qwengyre.schedule import events as ev
from qwengyre.schedule.state import Plan, Stage, State
from qwengyre.schedule.step import start, step
from qwengyre.sim.executions import Draw, Drawn, GroupDraw
from qwengyre.sim.run import simulate
from qwengyre.sim.workload import HOUR, Cost, Exec, Failures, Rate, Train, Workload
from qwengyre.sim.world import SimWorld
from qwengyre.types import Ending, ExecutionId, Role

EXACT = Workload(
    exec=Exec(median_h=100 / HOUR, sigma_within=0, sigma_group=0, tokens_per_h=HOUR),
    train=Train(tokens_per_h_per_cell=HOUR * 10, microstep_tokens=70, opt_s=5.0),
    cost=Cost(settle_s=10.0, weigh_s=1.0),
)
"""Each execution works 100 s and makes 100 tokens; a group of 2 is 3 micro-steps of 20/3 s."""
LETTERS = {"groups_per_step": 2, "group_size": 2, "steps": 2, "capacity": 4}


def run(kind: str, work: Workload, seed: int = 0, **letters: int) -> State:
    return simulate(Plan.for_policy(kind, **(LETTERS | letters)), work, seed)[0]


def new_world(plan: Plan, work: Workload = EXACT, seed: int = 0) -> SimWorld:
    return SimWorld(plan, work, Drawn(work, plan, seed), seed)


def next_events(world: SimWorld, count: int) -> list[ev.Event]:
    return [asyncio.run(world.next_event()) for _ in range(count)]


def test_a_burst_takes_what_its_parts_take() -> None:
    plan = Plan.for_policy("elastic", **(LETTERS | {"steps": 1}), cells=1)
    world, state = new_world(plan), start(plan)
    ends, counted = list[float](), 0
    while not state.done:
        event = asyncio.run(world.next_event())
        state, actions = step(state, event)
        world.begin(actions)
        if isinstance(event, ev.Ended):
            ends.append(event.at)
        if isinstance(event, ev.Backlog):
            counted = max(counted, event.counted)
    assert ends == [100.0] * 4
    rollout_and_weighing, switch = 111.0, 8.52
    assert counted == 2 * 3
    assert state.at == pytest.approx(rollout_and_weighing + switch + 40.0 + 5.0 + 20.0)


def test_the_same_seed_is_the_same_run_and_executions_do_not_depend_on_the_policy() -> None:
    work = Workload(failures=Failures(dropped=0.3, cell_life_h=8.0))
    assert run("elastic", work, 3, cells=2) == run("elastic", work, 3, cells=2)
    assert run("elastic", work, 3, cells=2) != run("elastic", work, 4, cells=2)
    quiet = Workload(failures=Failures(dropped=0.3))
    void = [
        {g for g, group in run(kind, quiet, 5, cells=2).groups.items() if group.stage is Stage.VOID}
        for kind in ("elastic", "async", "colocate")
    ]
    assert void[0] == void[1] == void[2]


def test_a_suspended_execution_makes_no_progress() -> None:
    plan = Plan.for_policy("colocate", **LETTERS, cells=1)
    world = new_world(plan)
    execution = ExecutionId(0, 0)
    world.begin([act.Dispatch("a", 0, 1, 0), act.Place("b", execution, 0), act.Move("c", 0, Role.TRAINING, 0)])
    seen = next_events(world, 4)
    assert [event.type for event in seen] == ["started", "cell_ready", "placed", "moved"]
    assert seen[-1].at == 8.52
    world.begin([act.Move("d", 0, Role.ROLLOUT, 0)])
    seen = next_events(world, 2)
    assert [event.type for event in seen] == ["moved", "ended"]
    assert seen[-1].at == pytest.approx(100.0 + 8.52 + 3.46)


def test_a_world_in_which_nothing_can_happen_says_so() -> None:
    world = new_world(Plan.for_policy("elastic", **LETTERS, cells=1))
    for _ in range(2):
        asyncio.run(world.next_event())
    with pytest.raises(RunError, match="stands still"):
        asyncio.run(world.next_event())


def test_a_lost_cell_comes_back_and_a_lost_core_rolls_the_run_back() -> None:
    world = new_world(Plan.for_policy("elastic", **LETTERS, cells=2))
    world.lose(1)
    world.lose(1)
    world.lose(0)
    seen = next_events(world, 9)
    assert [event.type for event in seen] == [
        "started",
        "cell_ready",
        "cell_ready",
        "cell_lost",
        "cell_lost",
        "cell_ready",
        "rolled_back",
        "cell_ready",
        "cell_ready",
    ]
    assert {(e.cell, e.incarnation) for e in seen[-2:] if isinstance(e, ev.CellReady)} == {(0, 1), (1, 1)}


def test_a_move_meant_for_a_cell_that_died_is_refused() -> None:
    world = new_world(Plan.for_policy("elastic", **LETTERS, cells=2))
    world.lose(1)
    world.begin([act.Move("a", 1, Role.TRAINING, 0)])
    seen = next_events(world, 5)
    world.begin([act.Move("b", 1, Role.TRAINING, 0)])
    with pytest.raises(RunError):
        asyncio.run(world.next_event())
    assert [event.type for event in seen][-1] == "cell_ready"


def test_cells_share_the_micro_steps() -> None:
    train = Train(tokens_per_h_per_cell=HOUR / 10, microstep_tokens=5, opt_s=0.0)
    work = EXACT.model_copy(update={"train": train, "cost": Cost(publish_s=0.0)})
    one, four = run("colocate", work, cells=1, steps=1), run("colocate", work, cells=4, steps=1)
    assert 3.3 < one.at / four.at < 4.0


@pytest.mark.parametrize("kind", ["elastic", "async", "colocate"])
def test_every_policy_trains_every_group(kind: str) -> None:
    state = run(kind, Workload(), cells=3, steps=4, phi=1, mu=2)
    assert [group.stage for group in state.groups.values()] == [Stage.ADMITTED] * 8
    assert state.version == 2


class Given:
    """Executions as given: (work_s, tokens a second) of each member of every group."""

    def __init__(self, *members: tuple[float, float]) -> None:
        self.draw = GroupDraw(tuple(Draw(*member) for member in members))

    def group(self, index: int) -> GroupDraw:
        return self.draw


def ends(plan: Plan, work: Workload, source: Given) -> dict[ExecutionId, ev.Ended]:
    """A whole run's ends of executions."""
    world, state, seen = SimWorld(plan, work, source), start(plan), dict[ExecutionId, ev.Ended]()
    while not state.done:
        event = asyncio.run(world.next_event())
        state, actions = step(state, event)
        world.begin(actions)
        if isinstance(event, ev.Ended):
            seen[event.execution] = event
    return seen


def test_executions_that_share_a_cell_slow_each_other_down() -> None:
    """Two decode all the time, a = 1: each at R = 1 / (1 + 1 (2 - 1)) = 1/2, until one is over."""
    plan = Plan.for_policy("elastic", **(LETTERS | {"groups_per_step": 1, "steps": 1}), cells=1)
    work = Workload(rate=Rate(env_frac=0.0, alpha=1.0))
    seen = ends(plan, work, Given((100.0, 1.0), (150.0, 1.0)))
    assert seen[ExecutionId(0, 0)].at == pytest.approx(200.0)
    assert seen[ExecutionId(0, 1)].at == pytest.approx(250.0)


def test_a_timed_out_execution_trains_with_the_tokens_it_made() -> None:
    plan = Plan.for_policy("elastic", **(LETTERS | {"groups_per_step": 1, "steps": 1}), cells=1)
    work = Workload(
        exec=Exec(timeout_h=100 / HOUR), train=Train(tokens_per_h_per_cell=HOUR, microstep_tokens=1000, opt_s=0.0)
    )
    state, world = start(plan), SimWorld(plan, work, Given((50.0, 1.0), (float("inf"), 3.0)))
    while not state.done:
        event = asyncio.run(world.next_event())
        state, actions = step(state, event)
        world.begin(actions)
        if isinstance(event, ev.Weighed):
            assert event.tokens == 50 + 300
    assert world.tally.timed_out == 1
    assert state.at == pytest.approx(100 + 8.52 + 350 + 20)


@pytest.mark.parametrize(("clock", "at"), [("active", 100 + 8.52 + 3.46), ("wall", 100.0)])
def test_the_clock_of_the_time_out_stops_with_its_execution_if_it_counts_active_time(clock: str, at: float) -> None:
    plan = Plan.for_policy("colocate", **LETTERS, cells=1)
    work = Workload(exec=Exec(timeout_h=100 / HOUR, timeout_clock=clock))  # type: ignore[arg-type]
    world = SimWorld(plan, work, Given((500.0, 1.0), (500.0, 1.0)))
    world.begin([act.Dispatch("a", 0, 1, 0), act.Place("b", ExecutionId(0, 0), 0), act.Move("c", 0, Role.TRAINING, 0)])
    next_events(world, 4)
    world.begin([act.Move("d", 0, Role.ROLLOUT, 0)])
    seen = next_events(world, 2)
    assert [event.type for event in seen] == ["moved", "ended"]
    assert seen[-1].at == pytest.approx(at)


def test_a_moved_execution_stalls_and_holds_a_place() -> None:
    plan = Plan.for_policy("elastic", **LETTERS, cells=2)
    world = SimWorld(plan, Workload(cost=Cost(migrate_s=7.0)), Given((100.0, 1.0), (100.0, 1.0)))
    first = ExecutionId(0, 0)
    world.begin([act.Dispatch("a", 0, 1, 0), act.Place("b", first, 0), act.Rehome("c", ((first, 1),))])
    assert list(world.cells[1].guests) == [first]
    assert next_events(world, 5)[-1] == ev.Ended(107.0, first, Ending.FINISHED)


def test_a_publish_stalls_executions_while_their_keys_and_values_are_made_again() -> None:
    plan = Plan.for_policy("elastic", **LETTERS, cells=1)
    work = Workload(cost=Cost(refresh_s=30.0, publish_s=20.0))
    world = SimWorld(plan, work, Given((100.0, 1.0), (100.0, 1.0)))
    first = ExecutionId(0, 0)
    world.begin([act.Dispatch("a", 0, 1, 0), act.Place("b", first, 0), act.Publish("c", 1, 0)])
    seen = next_events(world, 5)
    assert [event.type for event in seen] == ["started", "cell_ready", "placed", "published", "ended"]
    assert seen[-1].at == pytest.approx(130.0)


def test_an_execution_of_an_evaluation_is_never_trained() -> None:
    world = new_world(Plan.for_policy("elastic", **LETTERS, cells=1))
    visitor = ExecutionId.of_evaluation(0, 3)
    world.begin([act.Evaluate("a", 0, 4, 0, 0), act.Place("b", visitor, 0)])
    seen = next_events(world, 5)
    assert [event.type for event in seen][-2:] == ["ended", "settled"]
    assert seen[-1].at == pytest.approx(110.0)
