"""Which finished groups enter a step."""

from collections.abc import Callable

from qwengyre.schedule import events as ev


def test_groups_enter_in_the_order_in_which_they_finished(begin: Callable) -> None:
    run = begin(groups_per_step=3, capacity=6)
    run.finish(2, 0, 1)
    assert run.admitted() == [(2, 0), (0, 0), (1, 0)]


def test_a_young_group_waits_when_an_older_deadline_would_break(begin: Callable) -> None:
    """phi 1, slack 0: groups of v_d 0 must be in steps 0 and 1."""
    run = begin(groups_per_step=2, steps=9, phi=1, capacity=8)
    run.finish(0, 1)
    run.end((2, 0), (2, 1), (3, 0), (3, 1))  # ended, not weighed: still to come
    run.train()
    run.publish()
    run.finish(4, 5)
    assert run.admitted() == [(0, 0), (1, 0)], "both places of step 1 belong to groups 2 and 3"
    run.send(ev.Weighed, 3, 1, 1)
    run.send(ev.Weighed, 2, 1, 1)
    assert run.admitted()[2:] == [(3, 1), (2, 1)]


def test_slack_lets_a_young_group_overtake(begin: Callable) -> None:
    run = begin(groups_per_step=2, steps=9, phi=1, slack=1, capacity=8)
    run.finish(0, 1)
    run.end((2, 0), (2, 1), (3, 0), (3, 1))
    run.train()
    run.publish()
    run.finish(4, 5)
    assert run.admitted()[2:] == [(4, 1), (5, 1)]
    run.train()
    run.publish()
    run.finish(6, 7)
    assert run.admitted()[4:] == [], "step 2 is the last for groups 2 and 3"
    run.send(ev.Weighed, 2, 1, 1)
    run.send(ev.Weighed, 3, 1, 1)
    assert run.admitted()[4:] == [(2, 2), (3, 2)]


def test_one_slot_stays_for_the_one_that_must_come(begin: Callable) -> None:
    run = begin(groups_per_step=2, steps=9, phi=1, capacity=8)
    run.finish(0, 1, 2)
    run.end((3, 0), (3, 1))
    run.train()
    run.publish()
    run.finish(4, 5)
    assert run.admitted()[2:] == [(2, 1)]
    run.send(ev.Weighed, 3, 1, 1)
    assert run.admitted()[2:] == [(2, 1), (3, 1)]


def test_the_last_step_of_the_run_is_a_deadline_for_all(begin: Callable) -> None:
    run = begin(groups_per_step=1, steps=3, phi=1, slack=5, capacity=8)
    run.finish(0)
    run.end((1, 0), (1, 1))
    run.train()
    run.publish()
    assert run.state.next_group == 3, "the run takes three groups"
    run.finish(2)
    assert run.admitted() == [(0, 0), (2, 1)]
    assert run.state.plan.deadline(0) == 2
