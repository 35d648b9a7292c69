"""Who gets which place."""

from collections.abc import Callable

from qwengyre.schedule import actions as act
from qwengyre.schedule import events as ev
from qwengyre.schedule.state import NOWHERE
from qwengyre.types import Ending, ExecutionId, Role


def places(run) -> list[int]:
    return [action.cell for action in run.news if isinstance(action, act.Place)]


def rehomed(run) -> dict[str, int]:
    return {str(e): cell for action in run.news if isinstance(action, act.Rehome) for e, cell in action.homes}


def test_queued_executions_go_where_most_is_free_ties_to_the_later_cell(begin: Callable) -> None:
    run = begin(cells=3, groups_per_step=3, capacity=3)
    assert places(run) == [2, 1, 0, 2, 1, 0]


def test_a_queued_execution_takes_the_place_of_one_that_ended(begin: Callable) -> None:
    run = begin(cells=2, groups_per_step=3, capacity=2)
    assert run.state.queued == 2
    home = run.state.executions[ExecutionId(0, 1)].home
    run.send(ev.Ended, ExecutionId(0, 1), Ending.FINISHED)
    assert [(a.execution, a.cell) for a in run.news] == [(ExecutionId(2, 0), home)]
    assert (run.state.queued, run.state.waterlevel) == (1, 5)


def test_a_leaving_cells_executions_go_to_the_standalone_pool_then_to_the_latest_cells(begin: Callable) -> None:
    run = begin(cells=3, standalone=1, groups_per_step=4, capacity=2)
    run.finish(0)
    run.end((1, 0))
    assert [cell.free for cell in run.state.cells] == [0, 1, 1, 1]
    before = run.alive(0)
    run.backlog(pending=2)
    assert [type(a) for a in run.news] == [act.Rehome, act.Move]
    assert rehomed(run) == dict(zip(sorted(before), [3, 2], strict=True))
    assert not run.state.cells[0].homes


def test_a_standalone_pool_fills_evenly(begin: Callable) -> None:
    run = begin(cells=1, standalone=2, groups_per_step=3, capacity=8)
    run.finish(0)
    run.backlog(pending=2)
    counts = [len(cell.homes) for cell in run.state.cells]
    assert counts == [0, 2, 2]


def test_a_lost_cells_executions_get_homes_as_far_as_there_is_room_before_the_queue(begin: Callable) -> None:
    run = begin(cells=3, groups_per_step=4, capacity=2)
    assert (run.state.queued, run.state.waterlevel) == (2, 8)
    lost = sorted(run.state.cells[2].homes)
    run.send(ev.CellLost, 2, 1)
    assert sorted(run.state.homeless) == lost
    assert all(run.state.executions[e].home == NOWHERE for e in lost)
    ended = next(iter(run.state.cells[1].homes))
    run.send(ev.Ended, ended, Ending.FINISHED)
    assert rehomed(run) == {str(lost[0]): 1}
    run.send(ev.CellReady, 2, 2, 2)
    assert rehomed(run) == {str(lost[1]): 2}
    assert places(run) == [2]


def test_an_unanswered_place_follows_its_execution(begin: Callable) -> None:
    run = begin(cells=2, groups_per_step=1, capacity=2)
    execution = min(run.state.cells[1].homes)
    run.send(ev.CellLost, 1, 1)
    assert rehomed(run) == {str(execution): 0}
    (again,) = (entry.action for about, entry in run.state.asked.items() if about == f"place {execution}")
    assert again.cell == 0
    assert again.id in {action.id for action in run.log}


def test_an_ended_execution_leaves_the_homeless(begin: Callable) -> None:
    run = begin(cells=1, groups_per_step=1, capacity=2)
    run.send(ev.CellLost, 0, 1)
    assert len(run.state.homeless) == 2
    run.send(ev.Ended, ExecutionId(0, 0), Ending.LOST)
    assert list(run.state.homeless) == [ExecutionId(0, 1)]
    assert run.state.waterlevel == 1


def test_nothing_is_placed_in_a_cell_that_trains_for_good(begin: Callable) -> None:
    run = begin("async", cells=2, groups_per_step=2, capacity=4)
    assert places(run) == [1, 1, 1, 1]
    assert run.state.cells[0].role is Role.TO_TRAINING
    assert run.state.rollout_capacity == 4
