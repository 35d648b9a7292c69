"""The tree: rows of new tokens only, paths walked, masks derived from kinds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwengyre.trajectory.tree import ROOT, Tree
from qwengyre.types import Kind, ModelCall, Segment, Stretch


def call(number: int, parent: int, suffix: list[int], output: list[int], *, trainable: bool = True) -> ModelCall:
    return ModelCall(
        call=number,
        thread="t",
        parent=parent,
        suffix=np.array(suffix, np.int32),
        segments=tuple(Segment(Kind.CONTEXT, 1) for _ in suffix),
        output=np.array(output, np.int32),
        logprobs=np.full(len(output), -0.5, np.float32),
        stretches=(Stretch(0, len(output), number, "e", "stop"),),
        finish="stop",
        temperature=0.5,
        trainable=trainable,
    )


def test_a_call_becomes_a_row_a_segment_and_a_sampled_row():
    tree = Tree()
    assert tree.add_call(call(0, ROOT, [1, 2], [3, 4])) == (0, 1, 2)
    assert tree.kinds == [Kind.CONTEXT, Kind.CONTEXT, Kind.SAMPLED]
    assert tree.parents == [ROOT, 0, 1]
    assert tree.lengths == [1, 2, 4]
    assert tree.path_ids(2).tolist() == [1, 2, 3, 4]
    assert tree.path_logprobs(2).tolist() == [0, 0, -0.5, -0.5]
    assert (tree.versions[2], tree.temperatures[2]) == (((2, 0),), 0.5)
    assert not tree.withheld


def test_a_branch_shares_its_prefix():
    tree = Tree()
    tree.add_call(call(0, ROOT, [1, 2], [3]))
    assert tree.add_call(call(1, 1, [], [9])) == (3,)
    assert tree.add_call(call(2, 2, [5], [6])) == (4, 5)
    assert list(tree.leaves()) == [3, 5]
    assert (tree.path_ids(3).tolist(), tree.path_ids(5).tolist()) == ([1, 2, 9], [1, 2, 3, 5, 6])
    assert tree.num_tokens == 6
    assert [tree.has_child(r) for r in range(6)] == [True, True, True, False, True, False]
    assert tree.has_child(ROOT)


def test_a_call_under_a_constraint_is_withheld():
    tree = Tree()
    assert tree.add_call(call(0, ROOT, [1], [2], trainable=False))[-1] in tree.withheld


def test_what_does_not_fit_is_refused():
    tree = Tree()
    with pytest.raises(AssertionError):
        tree.add(0, Kind.CONTEXT, np.zeros(1, np.int32), call=0, thread="")
    with pytest.raises(AssertionError):
        tree.add(ROOT, Kind.SAMPLED, np.zeros(1, np.int32), call=0, thread="")
    with pytest.raises(AssertionError):
        tree.add_call(ModelCall(**vars(call(0, ROOT, [1], [2])) | {"segments": ()}))
    assert len(tree) == 0


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.lists(st.integers(0, 9), max_size=5)), max_size=40))
def test_every_path_is_what_was_added_along_it(additions):
    tree, paths = Tree(), {ROOT: list[int]()}
    for choice, ids in additions:
        parent = choice % (len(tree) + 1) - 1
        row = tree.add(parent, Kind.CONTEXT, np.array(ids, np.int32), call=0, thread="")
        paths[row] = paths[parent] + ids
    for row, ids in paths.items():
        assert tree.path_ids(row).tolist() == ids
        if row != ROOT:
            assert tree.lengths[row] == len(ids)
    assert tree.num_tokens == sum(len(ids) for _, ids in additions)
    assert set(tree.leaves()) == set(range(len(tree))) - set(tree.parents)


def test_a_million_tokens_are_about_ten_megabytes():
    tree = Tree()
    row = ROOT
    for _ in range(1000):
        row = tree.add(row, Kind.CONTEXT, np.zeros(1000, np.int32), call=0, thread="")
    held = len(tree._ids._data) * 4 + len(tree._logprobs._data) * 4
    assert tree.num_tokens == 10**6
    assert held <= 2 * 8 * 10**6
