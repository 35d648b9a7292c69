"""Any tree, written and mapped again: the same arrays, roles and selection, and it grows on as before."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from test_trajectory import EXECUTION, trees

from qwengyre.gateway.frozen import freeze, read
from qwengyre.gateway.journal import CallLog
from qwengyre.trajectory.columns import columns, thaw
from qwengyre.trajectory.roles import roles
from qwengyre.trajectory.select import rng_for, select, trajectory
from qwengyre.trajectory.tree import ROOT, Tree
from qwengyre.types import Kind, ModelCall, Segment, Stretch


def same(a: Tree, b: Tree) -> bool:
    one, two = columns(a), columns(b)
    pairs = [(one.arrays[name], two.arrays[name]) for name in one.arrays]
    return one.threads == two.threads and all(x.dtype == y.dtype and np.array_equal(x, y) for x, y in pairs)


@given(trees(), st.integers(0, 100))
def test_a_tree_of_arrays_is_the_tree(tree: Tree, seed: int) -> None:
    again = thaw(columns(tree))
    assert same(tree, again)
    assert roles(again) == roles(tree)
    picks = select(tree, roles(tree), rng_for(seed, EXECUTION), 5)
    assert select(again, roles(again), rng_for(seed, EXECUTION), 5) == picks
    for pick in picks:
        one, two = trajectory(tree, pick, EXECUTION), trajectory(again, pick, EXECUTION)
        assert all(np.array_equal(getattr(one, n), getattr(two, n)) for n in ("ids", "logprobs", "selected", "rows"))
        assert one.versions == two.versions


def calls_of(tree: Tree) -> tuple[ModelCall, ...]:
    """The calls that would grow it, in order."""
    made: list[ModelCall] = []
    for number in dict.fromkeys(tree.calls):
        rows = [row for row in range(len(tree)) if tree.calls[row] == number]
        *context, sampled = rows
        made.append(
            ModelCall(
                call=number,
                thread="t",
                parent=tree.parents[rows[0]],
                suffix=np.concatenate([np.empty(0, np.int32), *(tree.ids(row) for row in context)]),
                segments=tuple(Segment(Kind.CONTEXT, len(tree.ids(row))) for row in context),
                output=tree.ids(sampled),
                logprobs=tree.logprobs(sampled),
                stretches=(Stretch(0, len(tree.ids(sampled)), number, "cell0.1", "stop"),),
                finish="stop",
                temperature=tree.temperatures[sampled],
                trainable=sampled not in tree.withheld,
            )
        )
    return tuple(made)


@settings(max_examples=40, deadline=None)
@given(trees())
def test_a_mapped_file_is_the_tree_and_does_not_hinder_it_from_growing(tree: Tree) -> None:
    calls = calls_of(tree)
    with TemporaryDirectory() as folder:
        journal = Path(folder) / "0-0.calls"
        journal.write_bytes(b"")
        freeze(journal, CallLog(calls, frozenset(call.call for call in calls), True, {}, 0))
        found = read(journal.with_suffix(".tree"))
        assert found is not None
        again = found.tree()
        assert same(tree, again)
        for grown in (tree, again):
            grown.add(ROOT, Kind.CONTEXT, np.arange(3, dtype=np.int32), call=99, thread="u")
        assert same(tree, again)
