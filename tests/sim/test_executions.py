"""Executions from a seed and from a trace."""

from pathlib import Path

import numpy as np
import pytest

from qwengyre.errors import ConfigError
from qwengyre.schedule.plan import Plan
from qwengyre.sim.executions import Drawn, read_trace
from qwengyre.sim.workload import HOUR, RL, Exec, Failures, Workload

PLAN = Plan.for_policy("elastic", cells=1, groups_per_step=2, group_size=3, steps=2, capacity=9)
WORK = Workload(
    exec=Exec(median_h=1, sigma_group=0.5, sigma_within=0.25, floor_h=0.1, tokens_per_h=7200, sigma_tok=0.5)
)


def test_the_order_of_the_draws_is_the_models() -> None:
    rng = np.random.default_rng(3)
    shared, own, noise = rng.standard_normal(4), rng.standard_normal((4, 3)), rng.standard_normal((4, 3))
    draw = Drawn(WORK, PLAN, 3).group(2).executions[1]
    assert draw.work_s == pytest.approx(HOUR * np.exp(0.5 * shared[2] + 0.25 * own[2, 1]))
    assert draw.tokens_per_s == pytest.approx(2 * np.exp(0.5 * noise[2, 1] - 0.125))


def test_no_execution_is_shorter_than_the_floor() -> None:
    floor = WORK.model_copy(update={"exec": Exec(median_h=1e-6, floor_h=0.1)})
    assert {draw.work_s for draw in Drawn(floor, PLAN, 0).group(0).executions} == {360.0}


def test_groups_beyond_the_run_are_drawn_too_and_what_goes_wrong_belongs_to_the_group() -> None:
    broken = WORK.model_copy(update={"failures": Failures(dropped=0.5, weightless=0.5, slow_verifiers=0.5, slow_s=9.0)})
    first, again = Drawn(broken, PLAN, 5), Drawn(broken, PLAN, 5)
    assert first.group(40) == again.group(40) != first.group(41)
    every = [first.group(g) for g in range(60)]
    assert 0.3 < np.mean([g.weightless for g in every]) < 0.7
    assert {draw.settle_s for g in every for draw in g.executions} == {0.0, 9.0}
    assert {draw.dropped for g in every for draw in g.executions} == {False, True}


def write(path: Path, text: str) -> Path:
    path.write_text("group,member,work_s,tokens_per_s\n" + text)
    return path


TWO = Workload(rl=RL(execs_per_group=2))


def test_a_trace_gives_its_executions_in_the_order_of_its_groups_and_begins_again(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "t.csv", "7,1,30,3\n7,0,inf,2\n2,0,10,1\n2,1,20,1.5\n"), TWO)
    assert [(d.work_s, d.tokens_per_s) for d in trace.group(0).executions] == [(10.0, 1.0), (20.0, 1.5)]
    assert [(d.work_s, d.tokens_per_s) for d in trace.group(1).executions] == [(float("inf"), 2.0), (30.0, 3.0)]
    assert trace.group(2) == trace.group(0)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("", "holds no execution"),
        ("0,0,1,1\n", "rl.execs_per_group is 2"),
        ("0,0,1,1\n0,0,1,1\n", "twice"),
        ("0,0,fast,1\n", "line 2: expected numbers"),
        ("0,0,-1,1\n", "at least 0"),
        ("0,0,nan,1\n", "at least 0"),
    ],
)
def test_a_trace_that_is_none_is_refused_in_one_line(tmp_path: Path, rows: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_trace(write(tmp_path / "t.csv", rows), TWO)


def test_a_trace_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no trace at"):
        read_trace(tmp_path / "t.csv", TWO)
