"""Plain sentences about who waits for what."""

from collections.abc import Callable

from qwengyre.schedule import events as ev
from qwengyre.schedule.state import Plan
from qwengyre.schedule.step import start
from qwengyre.schedule.waiting import waiting
from qwengyre.types import Ending, ExecutionId, Role


def said(run) -> str:
    return "\n".join(waiting(run.state))


def test_a_run_that_has_not_started_and_one_that_is_over(begin: Callable) -> None:
    plan = Plan.for_policy("elastic", cells=1, groups_per_step=1, group_size=2, steps=1, capacity=1)
    assert waiting(start(plan)) == ["the run waits for its first event, Started"]
    run = begin(groups_per_step=1, steps=1)
    run.finish(0, micro_steps=0)
    run.send(ev.StepClosed, 0)
    run.send(ev.Published, 1)
    assert waiting(run.state) == []


def test_executions_groups_and_the_queue(begin: Callable) -> None:
    run = begin(groups_per_step=2, capacity=3)
    run.send(ev.Placed, ExecutionId(0, 0))
    run.send(ev.Ended, ExecutionId(0, 1), Ending.FINISHED)
    run.state = run.state.but(at=run.state.at + 50)
    text = said(run)
    assert "step 1 has 0 groups and waits for 2 more" in text
    assert "group 0 waits for 2 of 2 executions to settle" in text
    assert "execution 0-0 runs at cell 0 for 53 s" in text
    assert "execution 0-1 ended and is not settled for 53 s" in text
    assert "execution 1-0 is being started at cell 0" in text


def test_why_no_cell_is_lent(begin: Callable) -> None:
    run = begin(groups_per_step=2, capacity=4)
    run.finish(0)
    run.backlog(pending=2)
    assert "step 1 has 2 micro-steps to train: 2 unclaimed, 0 claimed" in said(run)
    assert "no cell trains: 2 executions are unfinished, the places of all rollout cells are 4" in said(run)


def test_weighing_moving_closing_publishing(begin: Callable) -> None:
    run = begin(groups_per_step=1, steps=2, cells=2, capacity=2)
    run.end((0, 0), (0, 1))
    assert "group 0 waits to be weighed for 0 s" in said(run)
    run.send(ev.Weighed, 0, 2, 1)
    run.backlog(pending=2)
    assert "cell 0 is on its way to training for 0 s" in said(run)
    run.arrive(0, Role.TRAINING)
    run.backlog(pending=0)
    assert "step 1 waits for the optimizer of cell 0" in said(run)
    run.send(ev.StepClosed, 0)
    assert "the publish after step 1 waits for cells [1] in transit" in said(run)
    run.arrive(1, Role.TRAINING)
    assert "the next burst waits for version 1 to be published" in said(run)


def test_losses(begin: Callable) -> None:
    run = begin(cells=2, groups_per_step=1, capacity=1)
    run.send(ev.CellLost, 1, 1)
    assert "cell 1 is lost and has not come back" in said(run)
    assert "1 executions lost their cell and wait for a place" in said(run)
    run.send(ev.CellLost, 0, 1)
    assert "cell 0, the core, is lost: training waits for the roll-back" in said(run)
    run.send(ev.CellReady, 0, 2, 1)
    assert "cell 0 restarted and waits: it joins after the roll-back" in said(run)


def test_suspended_executions_say_so(begin: Callable) -> None:
    run = begin("colocate", cells=1, groups_per_step=1, phi=1, capacity=4)
    run.finish(0)
    run.backlog(pending=1)
    assert "at cell 0 (suspended)" in said(run)
