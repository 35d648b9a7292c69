from dataclasses import replace

import numpy as np
import pytest

from qwengyre.trajectory.pack import Recipe, Weighted, pack, split, weigh, weighted
from qwengyre.trajectory.runs import flattened
from qwengyre.trajectory.tree import ROOT, Tree
from qwengyre.types import ExecutionId, Kind, ModelCall, Segment, Settlement, Stretch, Trajectory, Verdict

RECIPE = Recipe(seed=0, jmax=5, microstep_tokens=64, max_sequence=256)


def call(number: int, parent: int, prompt: int, output: int, first: int = 0) -> ModelCall:
    ids = np.arange(first, first + prompt + output, dtype=np.int32)
    return ModelCall(
        call=number,
        thread="t",
        parent=parent,
        suffix=ids[:prompt],
        segments=(Segment(Kind.CONTEXT, prompt),),
        output=ids[prompt:],
        logprobs=np.full(output, -2, np.float32),
        stretches=(Stretch(0, output, 0, "cell0.1", "stop"),),
        finish="stop",
        temperature=0.8,
    )


def line(*sizes: tuple[int, int]) -> Tree:
    tree, leaf = Tree(), ROOT
    for number, (prompt, output) in enumerate(sizes):
        leaf = tree.add_call(call(number, leaf, prompt, output))[-1]
    return tree


def branches(num: int, tokens: int) -> Tree:
    """`tokens` sampled tokens in `num` branches from one context."""
    tree = Tree()
    root = tree.add(ROOT, Kind.CONTEXT, np.arange(4, dtype=np.int32), call=0, thread="t")
    cuts = np.linspace(0, tokens, num + 1).astype(int)
    for number, size in enumerate(np.diff(cuts)):
        tree.add_call(call(number, root, 1, int(size)))
    return tree


def scored(*scores: float) -> dict[int, Settlement]:
    return {member: Settlement(Verdict.SCORED, score=score) for member, score in enumerate(scores)}


def flat(length: int, temperature: float = 0.8) -> Weighted:
    weights = np.zeros(length, np.float32)
    weights[-1] = 1
    return Weighted(np.full(length, length, np.int32), weights, -weights, temperature, np.full(length, length))


def sized(tokens: int) -> Recipe:
    return replace(RECIPE, microstep_tokens=tokens)


def test_the_story_of_a_group():
    trees = {0: line((3, 2), (1, 2)), 1: line((3, 5)), 2: line((3, 4)), 3: line((3, 9))}
    members = scored(0, 1, 0.5) | {3: Settlement(Verdict.DROPPED, reason="crashed")}
    (micro_step,) = weigh(7, trees, members, RECIPE)
    assert (micro_step.name, micro_step.group, micro_step.temperature) == ("g7.0", 7, 0.8)
    assert micro_step.lengths == (8, 8)  # members 2 (A = 0) and 3 (dropped) add no rows
    assert micro_step.ids.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, *range(8)]
    half, tenth = -0.5 / 4, 0.5 / 5
    assert micro_step.weights.tolist() == pytest.approx(
        [0, 0, 0, half, half, 0, half, half, 0, 0, 0, *[tenth] * 5], rel=1e-6
    )
    assert micro_step.logprobs.tolist() == [0, 0, 0, -2, -2, 0, -2, -2, 0, 0, 0, -2, -2, -2, -2, -2]
    assert micro_step.ids.dtype == np.int32
    assert micro_step.weights.dtype == micro_step.logprobs.dtype == np.float32


@pytest.mark.parametrize("num", [1, 2, 5])
def test_branches_leave_an_executions_weight_alone(num):
    micro_steps = weigh(0, {0: branches(num, 60), 1: branches(1, 10)}, scored(1, 0), RECIPE)
    weights = np.concatenate([m.weights for m in micro_steps])
    assert weights[weights > 0].sum() == pytest.approx(0.5, rel=1e-6)
    assert np.count_nonzero(weights > 0) == 60


def test_a_capped_execution_keeps_its_weight():
    micro_steps = weigh(0, {0: branches(9, 90), 1: branches(1, 10)}, scored(1, 0), RECIPE)
    weights = np.concatenate([m.weights for m in micro_steps])
    assert np.count_nonzero(weights > 0) == 50  # 5 of 9 branches of 10
    assert weights[weights > 0].sum() == pytest.approx(0.5, rel=1e-6)


def test_equal_scores_and_missing_trees_make_no_rows():
    assert weigh(0, {0: line((3, 2)), 1: line((3, 2))}, scored(0.5, 0.5), RECIPE) == []
    (micro_step,) = weigh(0, {0: line((3, 2))}, scored(1, 0), RECIPE)  # member 1 never called the model
    assert micro_step.weights.sum() == pytest.approx(0.5)
    assert weigh(0, {0: Tree()}, scored(1, 0), RECIPE) == []


def test_a_tail_without_targets_is_not_carried():
    selected = np.array([False, True, True, False, False])
    path = Trajectory(
        execution=ExecutionId(0, 0),
        leaf=0,
        role="main",
        ids=np.arange(5, dtype=np.int32),
        logprobs=np.full(5, -1, np.float32),
        selected=selected,
        temperature=1.0,
        rows=np.zeros(5, np.int32),
    )
    assert weighted(path, 0.25).weights.tolist() == [0, 0.25, 0.25]
    assert weighted(path, 0.25).logprobs.tolist() == [0, -1, -1]


def test_micro_steps_are_bounded_and_hold_like_lengths():
    micro_steps = pack(2, [flat(n) for n in (10, 30, 30, 100, 20, 10)], sized(64))
    assert [m.lengths for m in micro_steps] == [(100,), (30, 30), (20, 10, 10)]
    assert [m.name for m in micro_steps] == ["g2.0", "g2.1", "g2.2"]
    assert all(sum(m.lengths) == len(m.ids) == len(m.weights) == len(m.logprobs) for m in micro_steps)


SHARING = replace(RECIPE, tree_depth=256)


def test_a_group_has_its_prompt_once_and_each_answer_for_itself():
    trees = {member: line((30, 4), (2, 3)) for member in range(3)}  # the same ids throughout
    (flat_one,) = weigh(0, trees, scored(0, 1, 0), replace(RECIPE, microstep_tokens=256))
    (tree,) = weigh(0, trees, scored(0, 1, 0), SHARING)
    assert (flat_one.tokens, flat_one.parents) == (117, ())
    assert (tree.tokens, tree.lengths, tree.parents) == (57, (39, 9, 9), (-1, 29, 29))
    assert np.array_equal(flattened(tree).ids, flat_one.ids)
    assert np.array_equal(flattened(tree).weights, flat_one.weights)
    assert np.array_equal(flattened(tree).logprobs, flat_one.logprobs)


def test_branches_share_their_sampled_rows_and_a_weight_stands_at_one_node():
    tree = line((8, 20))
    for number in (1, 2):
        tree.add_call(call(number, 1, 2, 3, first=50 * number))
    (micro_step,) = weigh(0, {0: tree}, scored(1, 0), SHARING)
    assert micro_step.lengths == (33, 5)
    assert micro_step.parents == (-1, 27)
    assert np.count_nonzero(micro_step.weights) == 26
    assert micro_step.weights.sum() == pytest.approx(0.5)


def test_a_weight_of_a_later_trajectory_stands_at_the_shared_token():
    """Two branches of which the second alone trains what both share."""
    ids, keys = np.arange(8, dtype=np.int32), np.arange(8)
    first = np.array([0, 0, 0, 0, 0, 0, 0, 1], np.float32)
    second = np.array([0, 0, 2, 2, 0, 0, 2], np.float32)
    found = [
        Weighted(ids, first, -first, 0.8, keys, first / 4),
        Weighted(ids[:7], second, -second, 0.8, np.r_[keys[:6], 90], second / 4),
    ]
    (micro_step,) = pack(0, found, SHARING)
    assert micro_step.lengths == (8, 1)
    assert micro_step.weights.tolist() == [0, 0, 2, 2, 0, 0, 0, 1, 2]
    assert micro_step.logprobs.tolist() == [0, 0, -2, -2, 0, 0, 0, -1, -2]
    assert micro_step.shares.tolist() == [0, 0, 0.5, 0.5, 0, 0, 0, 0.25, 0.5]


def test_rows_are_flat_where_a_tree_saves_little_or_cannot_be():
    trees = {0: line((1, 40)), 1: line((1, 40))}  # one token in common
    assert [m.parents for m in weigh(0, trees, scored(0, 1), replace(SHARING, microstep_tokens=256))] == [()]
    trees = {0: line((40, 10)), 1: line((40, 10))}
    assert all(not m.parents for m in weigh(0, trees, scored(0, 1), replace(SHARING, tree_depth=49)))
    assert [m.parents for m in weigh(0, trees, scored(0, 1), replace(SHARING, tree_depth=50))] == [(-1, 39)]


def test_trees_are_bounded_and_hold_neighbours():
    trees = {member: line((20, 12)) for member in range(8)}
    micro_steps = weigh(0, trees, scored(*[0, 1] * 4), SHARING)
    assert [m.tokens for m in micro_steps] == [56, 56, 44] or all(m.tokens <= 64 for m in micro_steps)
    assert sum(len(m.lengths) for m in micro_steps) == 8
    assert len(micro_steps) == 3
    assert max(m.tokens for m in micro_steps) - min(m.tokens for m in micro_steps) <= 12


def test_a_split_tree_takes_what_it_continues_along_without_weight():
    tree = line((8, 20))
    for number in (1, 2, 3):
        tree.add_call(call(number, 1, 2, 3, first=50 * number))
    (whole,) = weigh(0, {0: tree}, scored(1, 0), SHARING)
    assert len(whole.lengths) == 3
    head, rest = split(whole, 33)
    assert rest is not None
    assert (head.tokens, rest.tokens, rest.lengths, rest.parents) == (33, 38, (33, 5), (-1, 27))
    assert head.parents == ()
    both = [flattened(part) for part in (head, rest)]
    for name in ("ids", "weights", "logprobs", "lengths"):
        parts = np.concatenate([getattr(part, name) for part in both])
        assert np.array_equal(parts, getattr(flattened(whole), name))
    assert (head.name, rest.name) == ("g0.0/0-1", "g0.0/1-3")


def test_a_micro_step_has_one_temperature():
    micro_steps = pack(0, [flat(10), flat(10, 1.0), flat(10)], RECIPE)
    assert [(m.temperature, m.lengths) for m in micro_steps] == [(0.8, (10, 10)), (1.0, (10,))]


def test_a_sequence_that_cannot_be_trained_is_an_error():
    with pytest.raises(ValueError, match="group 4: a trajectory of 257 tokens, at most 256"):
        pack(4, [flat(257)], RECIPE)
    assert [m.lengths for m in pack(4, [flat(256)], RECIPE)] == [(256,)]


def test_weighing_twice_gives_the_same_bytes():
    trees = {0: branches(9, 90), 1: branches(7, 50)}
    for a, b in zip(weigh(0, trees, scored(1, 0), RECIPE), weigh(0, trees, scored(1, 0), RECIPE), strict=True):
        assert (a.name, a.lengths, a.ids.tobytes(), a.weights.tobytes()) == (
            b.name,
            b.lengths,
            b.ids.tobytes(),
            b.weights.tobytes(),
        )


@pytest.mark.parametrize(("tokens", "first"), [(1, 1), (10, 1), (49, 1), (50, 2), (69, 2), (70, 3)])
def test_a_split_cuts_between_sequences_and_loses_nothing(tokens: int, first: int):
    (whole,) = pack(2, [flat(n) for n in (30, 20, 20, 10)], sized(100))
    head, rest = split(whole, tokens)
    assert rest is not None
    assert len(head.lengths) == first
    for name in ("ids", "weights", "logprobs"):
        assert np.array_equal(np.concatenate([getattr(head, name), getattr(rest, name)]), getattr(whole, name))
    assert head.lengths + rest.lengths == whole.lengths
    assert (head.name, rest.name) == (f"g2.0/0-{first}", f"g2.0/{first}-4")
    assert (rest.group, rest.temperature) == (whole.group, whole.temperature)


def test_parts_of_parts_have_names_of_their_own():
    (whole,) = pack(2, [flat(10)] * 4, sized(100))
    head, rest = split(whole, 10)
    assert rest is not None
    assert [p.name for p in split(rest, 10) if p] == ["g2.0/1-2", "g2.0/2-4"]
    assert split(head, 5) == (head, None)
    assert split(whole, 40) == (whole, None)


@pytest.mark.parametrize("depth", [0, 512])
@pytest.mark.parametrize("num", [1, 2, 5])
def test_shares_of_an_execution_sum_to_one_and_need_no_advantage(num: int, depth: int):
    recipe = replace(RECIPE, shares=True, tree_depth=depth)
    trees = {0: branches(num, 60), 1: branches(1, 10), 2: branches(1, 20), 3: branches(1, 5)}
    dropped = {3: Settlement(Verdict.DROPPED, reason="crashed")}
    for scores in ((1, 0, 0.5), (1, 1, 1)):
        micro_steps = weigh(0, trees, scored(*scores) | dropped, recipe)
        for made in (micro_steps, [flattened(m) for m in micro_steps]):
            shares = np.concatenate([m.shares for m in made])
            assert shares.sum() == pytest.approx(3, rel=1e-6)
            assert np.count_nonzero(shares) == 60 + 10 + 20 == sum(np.count_nonzero(m.wanted) for m in made)
            assert shares.dtype == np.float32
            for size in (60, 10, 20):
                assert np.count_nonzero(np.isclose(shares, 1 / size)) == size
    assert all(m.shares is None for m in weigh(0, trees, scored(1, 0, 0.5) | dropped, RECIPE))


def test_a_split_keeps_shares():
    recipe = replace(RECIPE, shares=True, tree_depth=512)
    (whole,) = weigh(0, {0: branches(5, 30), 1: branches(2, 10)}, scored(1, 1), recipe)
    assert whole.parents
    parts, rest = [], whole
    while rest is not None:
        head, rest = split(rest, 12)
        parts.append(head)
    assert len(parts) > 2
    assert sum(part.shares.sum() for part in parts) == pytest.approx(2, rel=1e-6)
    assert sum(np.count_nonzero(part.wanted) for part in parts) == 40
