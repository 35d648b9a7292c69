"""Roll-backs, and events that come late or again."""

from collections.abc import Callable

import pytest

from qwengyre.schedule import actions as act
from qwengyre.schedule import events as ev
from qwengyre.schedule.state import Phase, Stage
from qwengyre.schedule.step import step
from qwengyre.types import Ending, ExecutionId, Role, Verdict


def after_two_bursts(begin: Callable):
    run = begin(groups_per_step=1, steps=4, capacity=4)
    run.finish(0)
    run.train()
    run.publish()
    run.finish(1)
    run.train()
    run.publish()
    return run


def test_a_roll_back_trains_the_same_groups_again(begin: Callable) -> None:
    run = after_two_bursts(begin)
    run.send(ev.Placed, ExecutionId(2, 0))
    news = run.send(ev.RolledBack, 0, 7)
    assert [type(a) for a in news] == [act.OpenStep, act.Admit]
    assert (run.state.step, run.state.version, run.state.next_version) == (0, 7, 8)
    assert (news[1].group, news[1].step) == (0, 0)
    assert {cell.role for cell in run.state.cells} == {Role.LOST}
    assert sorted(run.state.homeless) == [ExecutionId(2, 0), ExecutionId(2, 1)], "executions go on"
    run.send(ev.CellReady, 0, 2, 4)
    assert not run.state.homeless
    run.end((2, 0), (2, 1))
    run.send(ev.Weighed, 2, 1, 1)
    assert run.admitted()[2:] == [(0, 0)], "group 2 has weights of step 2: it waits for that step"
    run.train()
    assert run.news == (run.log[-1],)
    assert (run.news[0].version, run.news[0].step) == (8, 1)
    run.publish()
    assert run.state.next_group == 3, "nothing is rolled out twice"
    run.train()
    run.publish()
    assert run.admitted()[2:] == [(0, 0), (1, 1), (2, 2)]


def test_groups_come_back_in_the_order_in_which_they_finished(begin: Callable) -> None:
    run = begin(groups_per_step=3, capacity=6)
    run.finish(1, 2, 0)
    run.send(ev.RolledBack, 0, 1)
    assert run.admitted()[3:] == [(1, 0), (2, 0), (0, 0)]


def test_a_roll_back_keeps_what_is_weighed_and_withdraws_the_rest(begin: Callable) -> None:
    run = begin(groups_per_step=2, capacity=4)
    run.finish(0)
    run.end((1, 0), (1, 1))
    assert [entry.action.type for entry in run.state.asked.values() if entry.action.type == "weigh"]
    run.backlog(pending=2)
    run.send(ev.RolledBack, 0, 1)
    assert {e.action.type for e in run.state.asked.values()} == {"weigh", "open_step", "admit"}
    run.send(ev.Weighed, 1, 1, 1)
    assert run.state.groups[1].stage is Stage.ADMITTED


def test_a_roll_back_must_bring_a_new_version(begin: Callable) -> None:
    run = after_two_bursts(begin)
    with pytest.raises(ValueError, match="versions from 3 on are new"):
        run.send(ev.RolledBack, 0, 2)
    with pytest.raises(ValueError, match=r"steps 0\.\.2 can be returned to"):
        run.send(ev.RolledBack, 3, 9)


def test_a_publish_that_was_under_way_does_not_count_after_a_roll_back(begin: Callable) -> None:
    run = begin(groups_per_step=1, steps=2)
    run.finish(0)
    run.train()
    assert run.state.phase is Phase.PUBLISHING
    run.send(ev.RolledBack, 0, 5)
    run.send(ev.Published, 1)
    assert (run.state.version, run.state.step) == (5, 0)


def test_events_that_come_again_change_nothing(begin: Callable) -> None:
    run = begin(groups_per_step=2, capacity=2)
    execution = ExecutionId(0, 0)
    run.send(ev.Placed, execution)
    run.end((0, 0), (0, 1))
    run.send(ev.Weighed, 0, 3, 1)
    for event in (
        ev.Started(run.state.at),
        ev.Placed(run.state.at, execution),
        ev.Ended(run.state.at, execution, Ending.LOST),
        ev.Settled(run.state.at, execution, Verdict.DROPPED, 0.0),
        ev.Weighed(run.state.at, 0, 9, 1),
        ev.StepClosed(run.state.at, 0),
        ev.Published(run.state.at, 1),
        ev.Moved(run.state.at, 0, Role.TRAINING),
        ev.CellLost(run.state.at, 0, 0),
        ev.CellReady(run.state.at, 0, 0, 9),
        ev.Backlog(run.state.at, 3, 5, 5, 5),
    ):
        before = run.state
        run.send(type(event), *list(vars(event).values())[1:])
        assert run.news == (), event
        assert run.state == before.but(at=run.state.at), event


def test_an_execution_ends_once(begin: Callable) -> None:
    run = begin(capacity=1)
    for _ in range(2):
        run.send(ev.Ended, ExecutionId(0, 0), Ending.FINISHED)
    assert (run.state.ended, run.state.waterlevel) == (1, 3)


def test_a_group_with_newer_weights_does_not_fill_a_smaller_step(begin: Callable) -> None:
    run = begin(groups_per_step=2, capacity=4)
    run.finish(0)
    run.void(1)
    run.train()
    run.publish()
    run.finish(2, 3)
    run.train()
    run.publish()
    run.send(ev.RolledBack, 0, 9)
    assert run.admitted()[3:] == [(0, 0)], "groups 2 and 3 are ready, but have the weights of step 1"
    assert run.state.room == 0


def test_a_placed_that_comes_after_its_ended_is_not_counted(begin: Callable) -> None:
    run = begin()
    run.send(ev.Ended, ExecutionId(0, 0), Ending.NOTHING_TO_ASSESS)
    run.send(ev.Placed, ExecutionId(0, 0))
    assert (run.state.started, run.state.ended) == (0, 1)


def test_a_restart_that_is_heard_before_its_loss_counts_as_one(begin: Callable) -> None:
    run = begin(cells=2, groups_per_step=1, capacity=1)
    execution = min(run.state.cells[1].homes)
    run.send(ev.CellReady, 1, 2, 1)
    assert [type(a) for a in run.news] == [act.Rehome]
    assert run.news[0].homes == ((execution, 1),)
    run.send(ev.CellLost, 1, 1)
    assert run.state.cells[1].role is Role.ROLLOUT, "the loss of the old incarnation comes too late"
    run.send(ev.CellLost, 1, 2)
    run.send(ev.CellReady, 1, 2, 1)
    assert run.state.cells[1].role is Role.LOST, "an incarnation that died does not come back"


def test_a_move_is_withdrawn_by_the_loss_of_its_cell(begin: Callable) -> None:
    run = begin(cells=2, groups_per_step=1, capacity=2)
    run.finish(0)
    run.backlog(pending=1)
    run.arrive(0, Role.TRAINING)
    run.backlog(pending=1)
    assert run.state.cells[1].role is Role.TO_TRAINING
    run.send(ev.CellLost, 1, 1)
    run.arrive(1, Role.TRAINING)
    assert run.state.cells[1].role is Role.LOST


def test_time_never_runs_backwards(begin: Callable) -> None:
    run = begin()
    at = run.state.at
    state, _ = step(run.state, ev.Capacity(0.0, 0, 4))
    assert state.at == at
