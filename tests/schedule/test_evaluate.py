"""Evaluations: at which boundaries, of which executions, and what a loss or a roll-back makes of them."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from qwengyre.errors import ConfigError
from qwengyre.schedule import actions as act
from qwengyre.schedule import events as ev
from qwengyre.schedule.codec import decode, encode
from qwengyre.schedule.evaluate import MOST_AGAIN
from qwengyre.schedule.state import Evaluations, Phase, Plan, State
from qwengyre.schedule.waiting import waiting
from qwengyre.types import Ending, ExecutionId, Role, Verdict


def of(evaluation: int, *members: int) -> list[ExecutionId]:
    return [ExecutionId.of_evaluation(evaluation, member) for member in members]


def types(actions: Any) -> list[str]:
    return [action.type for action in actions]


def placed(actions: Any) -> list[str]:
    return [str(action.execution) for action in actions if isinstance(action, act.Place)]


def test_ids_in_text() -> None:
    assert [str(e) for e in of(2, 0, 37)] == ["eval2-0", "eval2-37"]
    assert ExecutionId.parse("eval2-37") == ExecutionId.of_evaluation(2, 37)
    assert ExecutionId.parse("eval2-37").evaluation == 2
    assert ExecutionId.parse("12-3").evaluation < 0
    assert min(of(0, 0)) < ExecutionId(0, 0), "of no group"


@pytest.mark.parametrize(
    ("every", "before", "after", "steps"),
    [
        (0, False, False, []),
        (0, True, True, [0, 7]),
        (2, False, False, [2, 4, 6]),
        (3, True, False, [0, 4, 6]),
        (3, False, True, [4, 6, 7]),
        (7, False, True, [7]),
    ],
)
def test_boundaries_that_are_due(every: int, before: bool, after: bool, steps: list[int]) -> None:
    """Bursts of two steps, and one of one: a multiple of `every` inside a burst counts at its end."""
    rule, newest, found = Evaluations(1, every, before, after), -1, list[int]()
    for step in (0, 2, 4, 6, 7):
        if rule.due(step, 7, newest):
            newest = step
            found.append(step)
    assert found == steps
    assert not Evaluations(0, every, before, after).due(0, 7, -1)


def test_nothing_is_dispatched_until_the_last_one_is_settled(begin: Callable) -> None:
    run = begin(evaluations=Evaluations(6, before=True), capacity=4)
    assert types(run.news) == ["evaluate"] + ["place"] * 4
    assert run.news[0] == act.Evaluate("evaluate-0", 0, 6, 0, 0)
    assert placed(run.news) == ["eval0-0", "eval0-1", "eval0-2", "eval0-3"]
    assert (run.state.queued, run.state.waterlevel, run.state.dispatched) == (2, 6, 0)
    assert "evaluation" in waiting(run.state)[0]
    run.end(*of(0, 0, 1, 2, 3, 4))
    assert run.state.phase is Phase.EVALUATING
    assert decode(State, json.loads(json.dumps(encode(run.state)))) == run.state
    run.end(*of(0, 5))
    assert types(run.news) == ["evaluated", "dispatch", "open_step"] + ["place"] * 4
    assert (run.state.ended, run.state.waterlevel) == (0, 4), "they are not of the run's d, p and f"
    assert not set(run.state.executions.keys()) & set(of(0, *range(6)))


def test_a_boundary_brings_all_cells_back_and_none_is_lent(begin: Callable) -> None:
    run = begin(cells=2, evaluations=Evaluations(2, every=1), phi=1, steps=3)
    run.finish(0, 1, 2)  # a batch more is nearly ready: the core would stay
    run.finish(3)
    run.train()
    run.send(ev.Published, 1)
    assert run.moves() == [(0, "rollout")]
    assert placed(run.news) == ["eval0-0", "eval0-1"]
    run.send(ev.Moved, 0, Role.TRAINING)  # it failed to return
    assert run.moves() == [(0, "rollout")]
    run.arrive(0, Role.ROLLOUT)
    run.end(*of(0, 0))
    assert run.state.phase is Phase.EVALUATING
    assert not run.state.training
    run.end(*of(0, 1))
    assert types(run.news)[:3] == ["evaluated", "dispatch", "open_step"]


def test_an_evaluation_goes_before_the_queue(begin: Callable) -> None:
    run = begin("colocate", evaluations=Evaluations(2, every=1), phi=2, capacity=4)
    run.finish(0, 1)
    run.train()
    run.publish()
    assert run.state.queued == 4 + 2, "the places are taken by look-ahead"
    for member, execution in ((0, "eval0-0"), (1, "eval0-1")):
        run.send(ev.Ended, ExecutionId(2, member), Ending.FINISHED)
        assert placed(run.news) == [execution]
    run.send(ev.Ended, ExecutionId(3, 0), Ending.FINISHED)
    assert placed(run.news) == ["4-0"]


def test_what_is_lost_runs_again_and_what_is_dropped_does_not(begin: Callable) -> None:
    run = begin(evaluations=Evaluations(2, before=True), capacity=1)
    run.end(*of(0, 0), verdict=Verdict.DROPPED)  # its verifier failed
    for time in range(MOST_AGAIN + 1):
        (execution,) = of(0, 1 + 2 * time)
        assert execution in run.state.executions
        run.send(ev.Ended, execution, Ending.LOST)
        assert run.state.phase is Phase.EVALUATING
        run.send(ev.Settled, execution, Verdict.DROPPED, 0.0)
    assert run.state.phase is Phase.OPEN
    assert run.state.visitors == 0


def test_a_roll_back_to_its_weights_goes_on_with_it(begin: Callable) -> None:
    run = begin(evaluations=Evaluations(3, before=True), capacity=2)
    run.end(*of(0, 0))
    run.send(ev.RolledBack, 0, 1)
    run.send(ev.CellReady, 0, 2, 2)
    assert types(run.log).count("evaluate") == 1
    run.end(*of(0, 1, 2))
    assert run.state.phase is Phase.OPEN
    run.send(ev.RolledBack, 0, 2)
    assert run.state.phase is Phase.OPEN, "it is not evaluated twice"


def test_a_roll_back_to_older_weights_gives_it_up(begin: Callable) -> None:
    rule = Evaluations(3, every=1, before=True)
    run = begin(evaluations=rule, capacity=2, standalone=1, groups_per_step=1)
    run.end(*of(0, 0, 1, 2))
    run.finish(0)
    run.train()
    run.publish()
    run.send(ev.RolledBack, 0, 2)
    assert run.state.phase is Phase.OPEN, "version 0 was evaluated"
    for cell in (0, 1):
        run.send(ev.CellReady, cell, 2, 2)
    assert run.alive(0) | run.alive(1) == {"eval1-0", "eval1-1", "eval1-2"}
    run.backlog(pending=1)
    assert (run.state.waterlevel, run.moves()) == (3, []), "they hold their places: no cell is lent under them"
    run.send(ev.Ended, *of(1, 1), Ending.FINISHED)
    assert run.moves() == [(0, "training")]
    run.train()
    run.publish()
    assert [(a.evaluation, a.step, a.version) for a in run.log if isinstance(a, act.Evaluate)][2:] == [(2, 1, 3)]
    before = run.state.evaluation
    run.send(ev.Settled, *of(1, 1), Verdict.SCORED, 1.0)
    run.send(ev.Ended, *of(1, 2), Ending.LOST)
    run.send(ev.Settled, *of(1, 2), Verdict.DROPPED, 0.0)
    after = run.state.evaluation
    assert (after.unsettled, after.again) == (before.unsettled, ()), "what became of them says nothing"


def test_a_plan_of_no_steps_is_one_evaluation(begin: Callable) -> None:
    run = begin(evaluations=Evaluations(2, before=True, after=True), steps=0)
    run.end(*of(0, 0, 1))
    assert run.state.done
    assert types(run.log) == ["evaluate", "place", "place", "evaluated"]
    with pytest.raises(ConfigError, match="steps=0: give at least 1"):
        Plan(cells=1, groups_per_step=1, group_size=2, steps=0, capacity=1)
