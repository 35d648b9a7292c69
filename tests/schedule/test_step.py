"""A burst told by hand, from the boundary to the next one."""

from collections.abc import Callable

import pytest

from qwengyre.schedule import actions as act
from qwengyre.schedule import events as ev
from qwengyre.schedule.state import Phase, Plan
from qwengyre.schedule.step import asked, open_executions, start, step
from qwengyre.types import Ending, ExecutionId, Role, Verdict


def kinds(actions: tuple[act.Action, ...]) -> list[str]:
    return [action.type for action in actions]


def test_one_cell_alternates(begin: Callable) -> None:
    run = begin(cells=1, groups_per_step=2, group_size=2, steps=2, capacity=4)
    assert kinds(run.news) == ["dispatch", "open_step", "place", "place", "place", "place"]
    dispatch = run.news[0]
    assert (dispatch.first, dispatch.count, dispatch.version) == (0, 2, 0)

    run.finish(0)
    assert kinds(run.news) == ["admit"]
    assert run.backlog(pending=2) == (), "w = 2 > C_R - C_e = 0: the cell still rolls out"
    run.end((1, 0))
    run.send(ev.Ended, ExecutionId(1, 1), Ending.FINISHED)
    assert run.moves() == [(0, "training")], "w = 0: it is lent while the last score is still made"
    run.arrive(0, Role.TRAINING)
    run.send(ev.Settled, ExecutionId(1, 1), Verdict.SCORED, 0.5)
    assert kinds(run.news) == ["weigh"]
    run.send(ev.Weighed, 1, 1, 50)
    assert kinds(run.news) == ["admit"]

    assert kinds(run.backlog(pending=0)) == ["close_step"]
    assert run.send(ev.StepClosed, 7) == (), "an answer to something else"
    assert run.state.phase is Phase.CLOSING
    assert kinds(run.send(ev.StepClosed, 0)) == ["publish"]
    publish = run.news[0]
    assert (publish.version, publish.step) == (1, 1)
    assert kinds(run.send(ev.Published, 1)) == ["dispatch", "open_step", "move"]
    assert (run.news[0].first, run.news[0].count, run.news[0].version) == (2, 2, 1)
    assert kinds(run.arrive(0, Role.ROLLOUT)) == ["place"] * 4

    run.finish(2, 3)
    run.train()
    run.send(ev.Published, 2)
    assert run.state.done
    assert (run.state.version, run.state.finished_steps) == (2, 2)
    assert run.news == ()


def test_a_ledger_that_has_not_seen_the_newest_admit_closes_nothing(begin: Callable) -> None:
    run = begin(groups_per_step=1)
    run.finish(0, micro_steps=3)
    run.send(ev.Backlog, 0, 0, 0, 0)  # sent before the Admit was seen
    assert run.state.phase is Phase.OPEN
    run.backlog(pending=3)
    run.arrive(0, Role.TRAINING)
    run.send(ev.Backlog, 0, 0, 1, 2)
    assert run.state.phase is Phase.OPEN
    run.send(ev.Backlog, 0, 0, 0, 3)
    assert kinds(run.news) == ["close_step"]


def test_a_step_without_weight_closes_and_publishes_without_training(begin: Callable) -> None:
    run = begin(groups_per_step=1, steps=1)
    run.finish(0, micro_steps=0)
    assert kinds(run.news) == ["admit", "close_step"]
    assert kinds(run.send(ev.StepClosed, 0)) == ["publish"]
    run.send(ev.Published, 1)
    assert run.state.done


def test_a_step_whose_groups_are_all_void_closes(begin: Callable) -> None:
    run = begin(groups_per_step=2, steps=2)
    run.void(0, 1)
    assert kinds(run.news) == ["void", "close_step"]
    run.send(ev.StepClosed, 0)
    assert kinds(run.send(ev.Published, 1))[:2] == ["dispatch", "open_step"]


def test_a_void_group_makes_its_step_smaller_and_nothing_is_dispatched_inside_the_burst(begin: Callable) -> None:
    run = begin(groups_per_step=2, steps=2)
    run.end((0, 0))
    run.end((0, 1), verdict=Verdict.DROPPED)
    assert kinds(run.news) == ["void"]
    assert "1 of 2 executions were dropped" in run.news[0].reason
    run.finish(1)
    assert run.state.room == 0
    run.train()
    dispatch = run.publish()[0]
    assert (dispatch.first, dispatch.count) == (2, 2)


def test_look_ahead_replaces_a_void_group_at_the_next_boundary(begin: Callable) -> None:
    run = begin(groups_per_step=2, steps=9, phi=1, capacity=8)
    assert run.state.next_group == 4
    run.void(0)
    run.finish(1, 2)
    run.end((3, 0), (3, 1))
    run.train()
    dispatch = run.publish()[0]
    assert dispatch.count == 3, "two for the step that was trained, one for the void group"
    assert run.state.outstanding == run.state.plan.depth


def test_a_group_with_two_left_is_weighed(begin: Callable) -> None:
    run = begin(group_size=3, groups_per_step=1)
    run.end((0, 0), verdict=Verdict.DROPPED)
    run.end((0, 1), (0, 2))
    assert kinds(run.news) == ["weigh"]


def test_the_run_dispatches_no_more_than_its_steps_take(begin: Callable) -> None:
    run = begin(groups_per_step=2, steps=2, phi=3, capacity=8)
    assert run.state.next_group == 4
    run.finish(0, 1)
    run.end((2, 0), (2, 1), (3, 0), (3, 1))
    run.train()
    assert "dispatch" not in kinds(run.publish())


def test_a_burst_has_mu_steps_with_one_publish(begin: Callable) -> None:
    run = begin(groups_per_step=1, mu=2, steps=3)
    run.finish(0)
    run.end((1, 0), (1, 1))
    run.train()
    assert kinds(run.news)[0] == "open_step"
    run.send(ev.Weighed, 1, 2, 10)
    run.backlog(pending=0)
    assert kinds(run.send(ev.StepClosed, 1)) == ["publish"]
    run.publish()
    run.finish(2)
    run.train()
    assert kinds(run.news) == ["publish"], "the last burst is shorter"


def test_a_publish_waits_for_a_cell_in_transit_or_its_loss(begin: Callable) -> None:
    for lost in (False, True):
        run = begin(cells=3, groups_per_step=1, capacity=2)
        run.finish(0)
        run.backlog(pending=2)
        run.arrive(0, Role.TRAINING)
        run.backlog(pending=1)
        assert run.state.cells[1].role is Role.TO_TRAINING
        run.backlog(pending=0)
        assert run.send(ev.StepClosed, 0) == ()
        assert run.state.phase is Phase.ENDING
        news = run.send(ev.CellLost, 1, 1) if lost else run.arrive(1, Role.TRAINING)
        assert kinds(news) == ["publish"]
        run.send(ev.Published, 1)
        back = [cell for cell, _ in run.moves()]
        assert back == ([0] if lost else [1, 0]), "the late cell turns round with the others"


def test_asked_lists_what_a_new_world_must_begin(begin: Callable) -> None:
    run = begin(cells=1, groups_per_step=2, capacity=2)
    run.send(ev.Placed, ExecutionId(0, 0))
    assert kinds(asked(run.state)) == ["open_step", "place"]
    run.end((0, 0), (0, 1))
    assert kinds(asked(run.state)) == ["open_step", "place", "place", "weigh"]
    run.send(ev.Weighed, 0, 1, 10)
    assert kinds(asked(run.state)) == ["open_step", "place", "place", "admit"]
    run.finish(1)
    run.train()
    assert kinds(asked(run.state)) == ["publish"]


def test_open_executions_are_those_that_began(begin: Callable) -> None:
    run = begin(groups_per_step=2, capacity=3)
    run.send(ev.Ended, ExecutionId(0, 1), Ending.FINISHED)
    alive, ended = open_executions(run.state)
    assert alive == (ExecutionId(0, 0), ExecutionId(1, 0), ExecutionId(1, 1))
    assert ended == (ExecutionId(0, 1),)


def test_nothing_is_decided_before_the_run_started() -> None:
    state = start(Plan.for_policy("elastic", cells=1, groups_per_step=1, group_size=2, steps=1, capacity=1))
    state, actions = step(state, ev.CellReady(0.0, 0, 1, 5))
    assert actions == ()
    assert state.cells[0].capacity == 5
    _, actions = step(state, ev.Started(0.0))
    assert kinds(actions) == ["dispatch", "open_step", "place", "place"]


def test_settled_before_ended_is_an_error_of_the_world(begin: Callable) -> None:
    with pytest.raises(ValueError, match="report Ended first"):
        begin().send(ev.Settled, ExecutionId(0, 0), Verdict.SCORED, 1.0)
