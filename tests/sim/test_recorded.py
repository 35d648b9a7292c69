"""A run that was recorded is what the simulator makes of it again."""

import dataclasses

import pytest

from qwengyre.errors import ConfigError
from qwengyre.schedule.events import Backlog
from qwengyre.schedule.plan import NAMES
from qwengyre.sim.compare import Question
from qwengyre.sim.policies import plan_of
from qwengyre.sim.recorded import Entry, errors, recorded
from qwengyre.sim.run import measure, simulate
from qwengyre.sim.workload import RL, Cluster, Cost, Exec, Failures, Rate, Train, Workload

WORK = Workload(
    cluster=Cluster(cells=3, standalone=1, slots_per_cell=6),
    rl=RL(steps=6, groups_per_step=3, execs_per_group=3, mu=2, phi=1, stale_slack=1),
    exec=Exec(median_h=0.3, timeout_h=0.6, tokens_per_h=200_000),
    rate=Rate(env_frac=0.4, alpha=0.1),
    train=Train(tokens_per_h_per_cell=6e5, microstep_tokens=30_000),
    cost=Cost(settle_s=30, weigh_s=5),
    failures=Failures(dropped=0.1, weightless=0.1),
)


@pytest.mark.parametrize("kind", list(NAMES))
def test_a_recorded_run_is_reproduced(kind: str) -> None:
    plan = plan_of(WORK, kind)
    _, record = simulate(plan, WORK, 3)
    found = recorded(plan, record.entries, WORK.rate, WORK.exec.timeout_h * 3600)
    assert found.plan == plan
    real = Question(WORK, 3).run(kind)
    for name, was, now, _ in errors(real, found.result):  # what the journal says is what the world counted
        if name == "tokens":
            continue  # of a real run only those are known that were to be trained
        assert now == pytest.approx(was, rel=0.02, abs=0.01), name
    again = measure(kind, found.plan, found.workload, found.source)
    for name, was, now, error in errors(found.result, again):
        assert abs(error) < 0.05 or abs(now - was) < 0.03, (name, was, now)


def test_another_policy_is_predicted_from_a_recorded_one() -> None:
    """The executions of an async run, slowed down by each other there, are the same under elastic."""
    plan = plan_of(WORK, "async", 2)
    _, record = simulate(plan, WORK, 3)
    found = recorded(plan, record.entries, WORK.rate, WORK.exec.timeout_h * 3600)
    for kind in ("elastic", "colocate"):
        real = Question(WORK, 3).run(kind)
        told = Question(found.workload, given=found.source).run(kind)
        assert told.hours == pytest.approx(real.hours, rel=0.1)


def test_an_unfinished_run_is_replayed_as_far_as_it_was_published() -> None:
    plan = plan_of(WORK, "elastic")
    _, record = simulate(plan, WORK, 3)
    published = [i for i, (event, _) in enumerate(record.entries) if event.type == "published"]
    found = recorded(plan, record.entries[: published[1] + 40], WORK.rate)
    assert found.plan == dataclasses.replace(plan, steps=4)
    assert found.result.hours == pytest.approx(record.entries[published[1]][0].at / 3600)
    with pytest.raises(ConfigError, match="nothing to replay"):
        recorded(plan, record.entries[: published[0] - 1], WORK.rate)


def test_micro_steps_whose_gradient_is_late_take_no_longer() -> None:
    """In a real run the micro-steps of a satellite count, all at once, when its gradient is at the core."""
    plan = plan_of(WORK, "async", 2)
    _, record = simulate(plan, WORK, 3)
    late = list[Entry]()
    for event, actions in record.entries:
        if isinstance(event, Backlog) and event.pending + event.claimed:
            event = dataclasses.replace(event, claimed=event.claimed + event.counted, counted=0)
        late.append((event, actions))
    usual, found = recorded(plan, record.entries, WORK.rate), recorded(plan, late, WORK.rate)
    rate = usual.workload.train.tokens_per_h_per_cell
    assert found.workload.train.tokens_per_h_per_cell == pytest.approx(rate, rel=0.1)
