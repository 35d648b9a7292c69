"""Policies side by side: what the comparison is to show on every workload, and fairness between queries."""

import asyncio
import dataclasses

import pytest

from qwengyre.errors import ConfigError
from qwengyre.schedule.events import Settled
from qwengyre.schedule.plan import NAMES
from qwengyre.schedule.state import Stage
from qwengyre.sim.compare import Question, best_split, compare
from qwengyre.sim.executions import Draw, GroupDraw
from qwengyre.sim.policies import plan_of
from qwengyre.sim.report import table
from qwengyre.sim.run import simulate
from qwengyre.sim.sweep import Point, settings
from qwengyre.sim.sweep import table as sweep_table
from qwengyre.sim.workload import RL, Cluster, Cost, Exec, Failures, Train, Workload, read, shipped

SMALL = Workload(
    cluster=Cluster(cells=4, slots_per_cell=12),
    rl=RL(steps=8, groups_per_step=4, execs_per_group=4, mu=2),
    train=Train(tokens_per_h_per_cell=1e6, microstep_tokens=20_000),
)


@pytest.mark.parametrize("name", ["flagship_2p4t", "nl2repo_122b", "swe_terminal"])
def test_elastic_is_ahead_on_every_shipped_workload(name: str) -> None:
    whole = Workload.model_validate(read(name))
    workload = whole.model_copy(update={"rl": whole.rl.model_copy(update={"steps": 8})})
    hours = {kind: Question(workload, 1).run(kind, training=5).hours for kind in ("elastic", "colocate", "async")}
    assert hours["elastic"] * 1.1 < min(hours["colocate"], hours["async"])


def test_shipped_workloads_are_listed() -> None:
    assert shipped() == ["flagship_2p4t", "nl2repo_122b", "swe_terminal"]


def test_without_a_split_async_is_the_fastest_one() -> None:
    question = Question(SMALL)
    best, splits = best_split(question)
    assert splits.keys() == {1, 2, 3}
    answer = compare(question, ["async"])[0]
    assert answer.label == f"async a={best} (best)"
    assert answer.result == splits[best]
    assert answer.result.hours == min(result.hours for result in splits.values())
    one = SMALL.model_copy(update={"cluster": Cluster(cells=1)})
    with pytest.raises(ConfigError, match="needs a cell that trains"):
        best_split(Question(one))


def test_settings_of_a_workload_go_over_those_of_a_name() -> None:
    streaming = SMALL.model_copy(update={"policy": SMALL.policy.model_copy(update={"streaming": True})})
    assert plan_of(streaming, "async", 2).policy == dataclasses.replace(NAMES["async-streaming"], least=2, most=2)


def test_results_as_text() -> None:
    answers = compare(Question(SMALL), ["elastic", "colocate"])
    lines = table(answers)
    assert lines[0].split()[:2] == ["policy", "hours"]
    assert "Fastest: elastic" in lines[-1]
    points = [Point(setting, answers) for setting in settings(["rl.phi=0,1", "a=1"])]
    assert [line.split()[:3] for line in sweep_table(points)][1:4:2] == [["0", "1", "elastic"], ["1", "1", "elastic"]]
    with pytest.raises(ConfigError, match="expected a=1,2,3"):
        list(settings(["phi=1"]))


class Bimodal:
    """Every third group has a slow member."""

    def group(self, index: int) -> GroupDraw:
        slow = 6000.0 if index % 3 == 0 else 600.0
        return GroupDraw((Draw(slow, 50.0), Draw(600.0, 50.0), Draw(500.0, 50.0), Draw(700.0, 50.0)))


@pytest.mark.parametrize("kind", ["elastic", "async-streaming"])
def test_slow_queries_are_trained_in_proportion_and_nothing_is_dropped_for_its_age(kind: str) -> None:
    from qwengyre.loop import run
    from qwengyre.schedule.step import start
    from qwengyre.sim.run import Record
    from qwengyre.sim.world import SimWorld

    rl = RL(steps=24, groups_per_step=4, execs_per_group=4, mu=1, phi=2, stale_slack=2)
    workload = SMALL.model_copy(update={"rl": rl})
    plan = plan_of(workload, kind)
    state = asyncio.run(run(start(plan), (), SimWorld(plan, workload, Bimodal()), Record()))
    slow = [group.step for g, group in state.groups.items() if g % 3 == 0]
    assert {group.stage for group in state.groups.values()} == {Stage.ADMITTED}
    halves = sum(step < 12 for step in slow), sum(step >= 12 for step in slow)
    assert len(slow) == 32
    assert abs(halves[0] - halves[1]) <= 8


class OneEndless(Bimodal):
    """A query that never ends."""

    def group(self, index: int) -> GroupDraw:
        normal = GroupDraw((Draw(600.0, 50.0),) * 4)
        return GroupDraw((Draw(float("inf"), 50.0),) * 4) if index == 2 else normal


@pytest.mark.parametrize("kind", list(NAMES))
def test_a_query_that_never_ends_delays_a_step_by_its_time_out_at_most(kind: str) -> None:
    workload = SMALL.model_copy(update={"exec": Exec(timeout_h=2.0)})
    usual = Question(workload, given=Bimodal()).run(kind)
    late = Question(workload, given=OneEndless()).run(kind)
    assert late.hours <= usual.hours + 2.0 + 2.0 * 200_000 / 1e6  # and what it made is trained


def test_a_slow_verifier_delays_its_own_group() -> None:
    slow = SMALL.model_copy(update={"failures": Failures(slow_verifiers=0.2, slow_s=900.0)})
    _, record = simulate(plan_of(slow, "elastic"), slow)
    settled = [event for event, _ in record.entries if isinstance(event, Settled)]
    assert len(settled) == 8 * 4 * 4
    assert Question(slow).run("elastic").hours < Question(SMALL).run("elastic").hours + 4 * 900 / 3600


def test_lost_cells_cost_time_and_nothing_else() -> None:
    broken = SMALL.model_copy(update={"failures": Failures(cell_life_h=2.0, restart_s=300.0)})
    lossy, whole = Question(broken, 2).run("elastic"), Question(SMALL, 2).run("elastic")
    assert lossy.hours > whole.hours
    assert lossy.max_staleness <= 1


def test_moves_and_publishes_cost_what_the_workload_says() -> None:
    dear = SMALL.model_copy(update={"cost": Cost(to_train_s=600, to_rollout_s=600, migrate_s=600, refresh_s=600)})
    assert Question(dear).run("elastic").hours > Question(SMALL).run("elastic").hours + 4 * 600 / 3600
