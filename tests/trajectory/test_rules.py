"""The rules of docs/trajectories.md that no one function holds: what becomes of members, tails, dead ends, versions."""

from dataclasses import replace

import numpy as np
import pytest
from recorded_calls import Record, user

from qwengyre.trajectory.pack import Recipe, weigh
from qwengyre.trajectory.select import rng_for, select, trajectory
from qwengyre.trajectory.tree import ROOT, Tree
from qwengyre.types import ExecutionId, Kind, MicroStep, ModelCall, Segment, Settlement, Stretch, Verdict

RECIPE = Recipe(seed=0, jmax=5, microstep_tokens=4096, max_sequence=4096)
DROPPED = Settlement(Verdict.DROPPED, 0.7, "the verifier crashed on each retry")
PLACEHOLDER = Settlement(Verdict.PLACEHOLDER)


def scored(score: float) -> Settlement:
    return Settlement(Verdict.SCORED, score)


def answered(tokens: int, member: int) -> Tree:
    """One call; its output ids name the member."""
    record = Record()
    record.call(ROOT, user("Do it."), output=tokens)
    tree = record.tree
    tree.ids(1)[:] = member + 1
    return tree


def weight_of(micro_steps: list[MicroStep], member: int) -> float:
    return sum(float(m.weights[m.ids == member + 1].sum(dtype=np.float64)) for m in micro_steps)


def test_a_group_of_every_kind_of_member() -> None:
    """Scored with and without calls, a placeholder with and without calls, dropped ones with and without."""
    settled = {0: scored(1.0), 1: scored(0.2), 2: PLACEHOLDER, 3: DROPPED, 4: scored(0.6), 5: PLACEHOLDER, 6: DROPPED}
    trees = {member: answered(3 + member, member) for member in (0, 2, 3, 4)}
    micro_steps = weigh(0, trees, settled, RECIPE)
    mean = (1.0 + 0.2 + 0.0 + 0.6 + 0.0) / 5
    expected = {0: 1.0 - mean, 2: 0.0 - mean, 4: 0.6 - mean}
    for member in range(7):
        assert weight_of(micro_steps, member) == pytest.approx(expected.get(member, 0.0), rel=1e-5)


def test_a_dropped_members_score_is_worth_nothing_wherever_it_is() -> None:
    trees = {member: answered(4, member) for member in range(3)}
    one = weigh(0, trees, {0: scored(0), 1: scored(1), 2: DROPPED}, RECIPE)
    two = weigh(0, trees, {0: scored(0), 1: scored(1), 2: replace(DROPPED, score=-5.0)}, RECIPE)
    three = weigh(0, {0: trees[0], 1: trees[1]}, {0: scored(0), 1: scored(1)}, RECIPE)
    assert [m.weights.tolist() for m in one] == [m.weights.tolist() for m in two] == [m.weights.tolist() for m in three]


@pytest.mark.parametrize("std", [False, True])
@pytest.mark.parametrize("score", [0.0, 0.1, 1 / 3, 1.0])
def test_zero_variance_trains_nothing_whatever_the_rounding(score: float, std: bool) -> None:
    trees = {member: answered(4, member) for member in range(7)}
    assert weigh(0, trees, {member: scored(score) for member in trees}, replace(RECIPE, std=std)) == []


@pytest.mark.parametrize(
    "settled", [{0: scored(1), 1: DROPPED}, {0: DROPPED, 1: DROPPED}, {0: PLACEHOLDER, 1: DROPPED}]
)
def test_who_is_alone_has_nobody_to_be_compared_with(settled: dict[int, Settlement]) -> None:
    assert weigh(0, {0: answered(4, 0), 1: answered(4, 1)}, settled, RECIPE) == []


def test_std_divides_by_the_deviation_of_those_that_count() -> None:
    trees = {member: answered(4, member) for member in range(4)}
    settled = {0: scored(0.0), 1: scored(1.0), 2: scored(0.5), 3: DROPPED}
    micro_steps = weigh(0, trees, settled, replace(RECIPE, std=True))
    deviation = (1 / 6) ** 0.5
    assert weight_of(micro_steps, 1) == pytest.approx(0.5 / deviation, rel=1e-5)
    assert weight_of(micro_steps, 0) == pytest.approx(-0.5 / deviation, rel=1e-5)


def picked(record: Record, jmax: int = 100) -> list[int]:
    picks = select(record.tree, record.roles(), rng_for(0, ExecutionId(0, 0)), jmax)
    return sorted(row for pick in picks for row in pick.rows)


def test_a_kept_tail_is_context_after_a_compaction() -> None:
    """Its tokens stand in both lines; they are targets in the first, where they were sampled."""
    record = Record()
    first = record.call(ROOT, user("Do it."), output=6)
    last = record.call(first, user("More."), output=5)
    tail = record.tree.ids(last)
    kept = record.tree.add(ROOT, Kind.CONTEXT, tail, call=2, thread="t")
    new = record.call(kept, user("Go on."), output=4)
    assert picked(record) == [first, last, new]
    (pick,) = [p for p in select(record.tree, record.roles(), rng_for(0, ExecutionId(0, 0)), 9) if p.leaf == new]
    path = trajectory(record.tree, pick, ExecutionId(0, 0))
    assert path.ids[: len(tail)].tolist() == tail.tolist()
    assert not path.selected[: len(tail)].any()
    assert path.logprobs[: len(tail)].tolist() == [0.0] * len(tail)


def test_a_delivered_dead_end_trains_and_an_undelivered_one_does_not() -> None:
    record = Record()
    first = record.call(ROOT, user("Do it."))
    rejected = record.call(first, user("Go."), output=7)
    undelivered = record.call(record.tree.parents[rejected], output=5)
    record.tree.withheld.add(undelivered)
    last = record.call(first, user("That was malformed."))
    assert picked(record) == [first, rejected, last]
    marks = {leaf: role.mark for leaf, role in record.roles().items()}
    assert marks[rejected] == "superseded"


def test_versions_that_are_mixed_stay_with_their_tokens() -> None:
    """Within a call (a publish in the middle) and over a path."""
    tree = Tree()
    call = ModelCall(
        call=0,
        thread="t",
        parent=ROOT,
        suffix=np.zeros(2, np.int32),
        segments=(Segment(Kind.CONTEXT, 2),),
        output=np.arange(6, dtype=np.int32),
        logprobs=-np.arange(6, dtype=np.float32),
        stretches=(Stretch(0, 2, 3, "a", "abort"), Stretch(2, 6, 4, "b", "stop")),
        finish="stop",
        temperature=1.0,
    )
    row = tree.add_call(call)[-1]
    later = replace(call, call=1, parent=row, stretches=(Stretch(0, 1, 4, "b", "abort"), Stretch(1, 6, 7, "a", "stop")))
    leaf = tree.add_call(later)[-1]
    (pick,) = select(tree, Record(tree).roles(), rng_for(0, ExecutionId(0, 0)), 5)
    path = trajectory(tree, pick, ExecutionId(0, 0))
    assert (pick.leaf, path.versions) == (leaf, ((2, 3), (7, 4), (12, 7)))
    (micro_step,) = weigh(0, {0: tree}, {0: scored(1), 1: scored(0)}, RECIPE)
    assert micro_step.weights[micro_step.weights != 0].tolist() == pytest.approx([0.5 / 12] * 12)
    assert micro_step.logprobs[micro_step.weights != 0].tolist() == [*call.logprobs.tolist()] * 2
