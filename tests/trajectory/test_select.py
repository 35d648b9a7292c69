from collections import Counter
from time import process_time

import numpy as np
import pytest

from qwengyre.trajectory.roles import LeafRole, roles
from qwengyre.trajectory.select import rng_for, select, trainable, trajectory
from qwengyre.trajectory.tree import ROOT, Tree
from qwengyre.types import ExecutionId, Kind, ModelCall, Segment, Stretch

EXECUTION = ExecutionId(3, 1)


def call(number: int, parent: int, prompt: int, output: int, *, version: int = 0, **more) -> ModelCall:
    ids = np.arange(prompt + output, dtype=np.int32) + 100 * number
    return ModelCall(
        call=number,
        thread="t",
        parent=parent,
        suffix=ids[:prompt],
        segments=(Segment(Kind.CONTEXT, prompt),) if prompt else (),
        output=ids[prompt:],
        logprobs=-np.arange(1, output + 1, dtype=np.float32),
        stretches=(Stretch(0, output, version, "cell0.1", "stop"),),
        finish="stop",
        **({"temperature": 0.8} | more),
    )


def draws(tree: Tree, by_leaf: dict[int, LeafRole], jmax: int, num: int = 2000) -> Counter:
    return Counter(tuple(p.leaf for p in select(tree, by_leaf, np.random.default_rng(s), jmax)) for s in range(num))


def test_a_leaf_is_drawn_in_proportion_to_the_tokens_its_path_still_has():
    tree = Tree()
    first = tree.add_call(call(0, ROOT, 2, 10))[-1]
    left = tree.add_call(call(1, first, 1, 20))[-1]
    right = tree.add_call(call(2, first, 1, 50))[-1]
    firsts = Counter(order[0] for order in draws(tree, roles(tree), 1).elements())
    assert firsts[right] / 2000 == pytest.approx(60 / 90, abs=0.04)
    assert firsts[left] / 2000 == pytest.approx(30 / 90, abs=0.04)


def test_a_shared_row_is_contributed_once_and_jmax_is_kept():
    tree = Tree()
    first = tree.add_call(call(0, ROOT, 2, 10))[-1]
    for number in range(1, 8):
        tree.add_call(call(number, first, 1, 5))
    picks = select(tree, roles(tree), rng_for(0, EXECUTION), 5)
    assert [p.tokens for p in picks] == [15, 5, 5, 5, 5]
    assert len({row for p in picks for row in p.rows}) == 6
    assert len(select(tree, roles(tree), rng_for(0, EXECUTION), 100)) == 7


def test_a_higher_class_is_emptied_before_a_lower_one_and_auxiliary_is_never_drawn():
    tree = Tree()
    leaves = [tree.add_call(call(number, ROOT, 2, 10 * (number + 1)))[-1] for number in range(6)]
    names = ["sub-agent-summary", "sub-agent", "main", "auxiliary", "main-summary", "main"]
    by_leaf = {leaf: LeafRole(name, "") for leaf, name in zip(leaves, names, strict=True)}
    for order in draws(tree, by_leaf, 10, 50):
        assert [names[leaves.index(leaf)] for leaf in order] == [
            "main",
            "main",
            "main-summary",
            "sub-agent",
            "sub-agent-summary",
        ]


def test_tokens_of_a_higher_class_are_masked_for_a_lower_one():
    tree = Tree()
    first = tree.add_call(call(0, ROOT, 2, 10))[-1]
    main = tree.add_call(call(1, first, 1, 5))[-1]
    summary = tree.add_call(call(2, first, 1, 7))[-1]
    by_leaf = {main: LeafRole("main", ""), summary: LeafRole("main-summary", "")}
    picks = select(tree, by_leaf, rng_for(0, EXECUTION), 5)
    assert [(p.role, p.tokens) for p in picks] == [("main", 15), ("main-summary", 7)]


def test_withheld_rows_never_train_and_delivered_dead_ends_do():
    tree = Tree()
    first = tree.add_call(call(0, ROOT, 2, 10))[-1]
    rejected = tree.add_call(call(1, first, 0, 4))[-1]
    undelivered = tree.add_call(call(2, first, 0, 6))[-1]
    forced = tree.add_call(call(3, first, 1, 6, trainable=False))[-1]
    tree.withheld.add(undelivered)
    picks = select(tree, roles(tree), rng_for(0, EXECUTION), 100)
    rows = sorted(row for p in picks for row in p.rows)
    assert rows == [first, rejected]
    assert not {undelivered, forced} & set(rows)


def test_a_tree_without_trainable_tokens_gives_nothing():
    assert select(Tree(), {}, rng_for(0, EXECUTION), 5) == []
    tree = Tree()
    tree.add_call(call(0, ROOT, 3, 0))
    assert select(tree, roles(tree), rng_for(0, EXECUTION), 5) == []


def test_the_first_token_of_a_path_is_no_target():
    tree = Tree()
    leaf = tree.add_call(call(0, ROOT, 0, 5))[-1]
    assert trainable(tree) == [4]
    (pick,) = select(tree, roles(tree), rng_for(0, EXECUTION), 5)
    path = trajectory(tree, pick, EXECUTION)
    assert pick.leaf == leaf
    assert path.selected.tolist() == [False, True, True, True, True]
    assert path.versions == ((4, 0),)


def test_a_trajectory_is_the_whole_path_with_its_own_targets_marked():
    tree = Tree()
    first = tree.add_call(call(0, ROOT, 2, 3, version=4))[-1]
    kept = tree.add_call(call(1, first, 2, 2, version=4))[-1]
    leaf = tree.add_call(call(2, kept, 1, 2, version=6))[-1]
    (pick,) = select(tree, roles(tree), rng_for(0, EXECUTION), 5)
    path = trajectory(tree, pick, EXECUTION)
    assert (path.leaf, path.role, path.temperature) == (leaf, "main", 0.8)
    assert path.ids.tolist() == [0, 1, 2, 3, 4, 100, 101, 102, 103, 200, 201, 202]
    assert path.selected.astype(int).tolist() == [0, 0, 1, 1, 1, 0, 0, 1, 1, 0, 1, 1]
    assert path.logprobs.tolist() == [0, 0, -1, -2, -3, 0, 0, -1, -2, 0, -1, -2]
    assert path.versions == ((5, 4), (7, 6))


def test_one_path_has_one_temperature():
    tree = Tree()
    first = tree.add_call(call(0, ROOT, 2, 3))[-1]
    tree.add_call(call(1, first, 2, 2, temperature=1.0))
    (pick,) = select(tree, roles(tree), rng_for(0, EXECUTION), 5)
    with pytest.raises(ValueError, match=r"execution 3-1.*\[0.8, 1.0\]"):
        trajectory(tree, pick, EXECUTION)


def test_the_seed_belongs_to_the_execution():
    drawn = {
        (seed, group, member): rng_for(seed, ExecutionId(group, member)).integers(1 << 60)
        for seed in range(2)
        for group in range(3)
        for member in range(3)
    }
    assert len(set(drawn.values())) == len(drawn)
    assert drawn[1, 2, 0] == rng_for(1, ExecutionId(2, 0)).integers(1 << 60)


def test_the_cost_is_in_rows_not_tokens():
    tree = Tree()
    parent, row_tokens = ROOT, 830
    branches: list[int] = []
    for number in range(400):  # 1.0M tokens in 1,200 rows, 40 leaves
        rows = tree.add_call(call(number, parent, row_tokens, 2 * row_tokens))
        parent = tree.add(rows[-1], Kind.GLUE, np.zeros(1, np.int32), call=number, thread="t")
        if number % 10 == 9:
            branches.append(rows[-1])
            parent = branches[len(branches) // 2]
    assert tree.num_tokens > 990_000
    start = process_time()
    picks = select(tree, roles(tree), rng_for(0, EXECUTION), 5)
    assert len(picks) == 5
    assert process_time() - start < 0.5  # CPU time; tens of milliseconds, where a pass over the tokens takes seconds
