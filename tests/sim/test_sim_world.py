"""The simulated world performs actions with durations, and breaks as asked."""

import asyncio

import numpy as np
import pytest

from qwengyre.errors import RunError
from qwengyre.schedule import actions as act
from qwengyre.schedule import events as ev
from qwengyre.schedule.state import Plan, Stage, State
from qwengyre.schedule.step import start, step
from qwengyre.sim.workload import Workload
from qwengyre.sim.world import SimWorld, simulate
from qwengyre.types import ExecutionId, Role

EXACT = Workload(
    execution_s=100.0, spread=0.0, settle_s=10.0, weigh_s=1.0, micro_steps=1.0, micro_step_s=7.0, optimizer_s=5.0
)
LETTERS = {"groups_per_step": 2, "group_size": 2, "steps": 2, "capacity": 4}


def run(kind: str, work: Workload, seed: int = 0, **letters: int) -> State:
    return simulate(Plan.for_policy(kind, **(LETTERS | letters)), work, np.random.default_rng(seed))[0]


def test_a_burst_takes_what_its_parts_take() -> None:
    plan = Plan.for_policy("elastic", **(LETTERS | {"steps": 1}), cells=1)
    world, state = SimWorld(plan, EXACT, np.random.default_rng(0)), start(plan)
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
    assert state.at == pytest.approx(rollout_and_weighing + switch + counted * 7.0 + 5.0 + 20.0)


def test_the_same_seed_is_the_same_run_and_executions_do_not_depend_on_the_policy() -> None:
    work = Workload(dropped=0.3, cell_life_s=30_000.0)
    assert run("elastic", work, 3, cells=2) == run("elastic", work, 3, cells=2)
    assert run("elastic", work, 3, cells=2) != run("elastic", work, 4, cells=2)
    quiet = Workload(dropped=0.3)
    void = [
        {g for g, group in run(kind, quiet, 5, cells=2).groups.items() if group.stage is Stage.VOID}
        for kind in ("elastic", "async", "colocate")
    ]
    assert void[0] == void[1] == void[2]


def test_a_suspended_execution_makes_no_progress() -> None:
    plan = Plan.for_policy("colocate", **LETTERS, cells=1)
    world = SimWorld(plan, EXACT, np.random.default_rng(0))
    execution = ExecutionId(0, 0)
    world.begin([act.Dispatch("a", 0, 1, 0), act.Place("b", execution, 0), act.Move("c", 0, Role.TRAINING, 0)])
    seen = [asyncio.run(world.next_event()) for _ in range(4)]
    assert [event.type for event in seen] == ["started", "cell_ready", "placed", "moved"]
    assert seen[-1].at == 8.52
    world.begin([act.Move("d", 0, Role.ROLLOUT, 0)])
    seen = [asyncio.run(world.next_event()) for _ in range(2)]
    assert [event.type for event in seen] == ["moved", "ended"]
    assert seen[-1].at == pytest.approx(100.0 + 8.52 + 3.46)


def test_a_world_in_which_nothing_can_happen_says_so() -> None:
    world = SimWorld(Plan.for_policy("elastic", **LETTERS, cells=1), EXACT, np.random.default_rng(0))
    for _ in range(2):
        asyncio.run(world.next_event())
    with pytest.raises(RunError, match="stands still"):
        asyncio.run(world.next_event())


def test_a_lost_cell_comes_back_and_a_lost_core_rolls_the_run_back() -> None:
    world = SimWorld(Plan.for_policy("elastic", **LETTERS, cells=2), EXACT, np.random.default_rng(0))
    world.lose(1)
    world.lose(1)
    world.lose(0)
    seen = [asyncio.run(world.next_event()) for _ in range(9)]
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
    world = SimWorld(Plan.for_policy("elastic", **LETTERS, cells=2), EXACT, np.random.default_rng(0))
    world.lose(1)
    world.begin([act.Move("a", 1, Role.TRAINING, 0)])
    seen = [asyncio.run(world.next_event()) for _ in range(5)]
    world.begin([act.Move("b", 1, Role.TRAINING, 0)])
    with pytest.raises(RunError):
        asyncio.run(world.next_event())
    assert [event.type for event in seen][-1] == "cell_ready"


def test_cells_share_the_micro_steps() -> None:
    work = Workload(execution_s=10.0, spread=0.0, micro_steps=40.0, micro_step_s=60.0, optimizer_s=0.0, publish_s=0.0)
    one, four = run("colocate", work, cells=1, steps=1), run("colocate", work, cells=4, steps=1)
    assert 3.3 < one.at / four.at < 4.0


@pytest.mark.parametrize("kind", ["elastic", "async", "colocate"])
def test_every_policy_trains_every_group(kind: str) -> None:
    state = run(kind, Workload(), cells=3, steps=4, phi=1, mu=2)
    assert [group.stage for group in state.groups.values()] == [Stage.ADMITTED] * 8
    assert state.version == 2
