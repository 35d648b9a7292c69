"""No policy is faster than the bound, none breaks the staleness bound, and nothing is lost, whatever is simulated."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qwengyre.schedule.plan import NAMES, Plan
from qwengyre.sim.bounds import lower_bound
from qwengyre.sim.compare import Question
from qwengyre.sim.executions import Drawn
from qwengyre.sim.workload import HOUR, RL, Cluster, Cost, Exec, Failures, Rate, Train, Workload

WORKLOADS = st.builds(
    Workload,
    cluster=st.builds(
        Cluster, cells=st.integers(2, 4), standalone=st.integers(0, 1), slots_per_cell=st.sampled_from([4, 9])
    ),
    rl=st.builds(
        RL,
        steps=st.integers(1, 5),
        groups_per_step=st.integers(1, 3),
        execs_per_group=st.just(3),
        mu=st.integers(1, 3),
        phi=st.integers(0, 2),
        stale_slack=st.integers(0, 2),
    ),
    exec=st.builds(Exec, sigma_within=st.sampled_from([0.1, 1.2]), timeout_clock=st.sampled_from(["active", "wall"])),
    rate=st.builds(Rate, env_frac=st.sampled_from([0.0, 0.4]), alpha=st.sampled_from([0.0, 0.3])),
    train=st.builds(
        Train, tokens_per_h_per_cell=st.sampled_from([1e5, 1e6]), microstep_tokens=st.sampled_from([10_000, 1_000_000])
    ),
    cost=st.builds(Cost, migrate_s=st.sampled_from([0.0, 60.0]), refresh_s=st.sampled_from([0.0, 60.0])),
    failures=st.builds(Failures, dropped=st.sampled_from([0.0, 0.3]), slow_verifiers=st.sampled_from([0.0, 0.3])),
)


@settings(max_examples=150, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(WORKLOADS, st.sampled_from(list(NAMES)), st.integers(0, 1000))
def test_no_policy_is_faster_than_the_bound_or_breaks_the_staleness_bound(
    workload: Workload, kind: str, seed: int
) -> None:
    result = Question(workload, seed).run(kind)
    assert result.hours >= result.lower_bound_hours * (1 - 1e-9)
    assert result.max_staleness <= workload.rl.phi + workload.rl.mu - 1 + workload.rl.stale_slack
    assert 0 <= result.train_busy + result.train_idle <= 1 + 1e-9
    assert 0 <= result.slot_fill <= 1 + 1e-9


def bound(workload: Workload, **letters: int) -> float:
    plan = Plan.for_policy("elastic", **{"cells": 2, "groups_per_step": 1, "group_size": 2, "capacity": 2} | letters)
    return lower_bound(plan, workload, Drawn(workload, plan, 0))


EVEN = Workload(
    exec=Exec(median_h=1, sigma_within=0, sigma_group=0, tokens_per_h=HOUR),
    train=Train(tokens_per_h_per_cell=HOUR, opt_s=100.0),
    cost=Cost(publish_s=10.0),
)
"""An execution works an hour; a group of two trains two cell-hours."""


def test_the_bound_of_one_burst() -> None:
    """An hour of rollout, then two cell-hours on two cells, the optimizer and the publish."""
    assert bound(EVEN, steps=1) == pytest.approx(2 * HOUR + 110)


def test_the_bound_of_look_ahead_is_all_work_on_all_cells() -> None:
    """Four bursts: 8 executions, two at a time on a cell, and 8 cell-hours of training, on two cells."""
    assert bound(EVEN, steps=4, phi=3) == pytest.approx((8 / 2 + 8) / 2 * HOUR)


def test_the_bound_of_bursts_without_look_ahead_is_their_sum() -> None:
    assert bound(EVEN, steps=3) == pytest.approx(3 * (2 * HOUR + 110))
