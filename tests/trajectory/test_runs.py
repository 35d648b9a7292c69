"""a b c d e | f g (after c) | h (after g) | x y (a root), in depth-first order."""

import numpy as np

from qwengyre.trajectory import runs
from qwengyre.types import MicroStep

IDS = np.arange(10, 20, dtype=np.int32)
WEIGHTS = np.array([0, 0, 1, 2, 3, 4, 5, 6, 0, 7], np.float32)
TREE = MicroStep("g0.0", 0, IDS, (5, 2, 1, 2), WEIGHTS, -WEIGHTS, 1.0, (-1, 2, 6, -1))


def test_geometry():
    assert runs.starts(TREE) == [0, 5, 7, 8]
    assert runs.before(TREE).tolist() == [-1, 0, 1, 2, 3, 2, 5, 6, -1, 8]
    assert runs.depths(TREE).tolist() == [0, 1, 2, 3, 4, 3, 4, 5, 0, 1]
    assert runs.ends(TREE).tolist() == [8, 8, 8, 5, 5, 8, 8, 8, 10, 10]
    assert [path.tolist() for path in runs.paths(TREE)] == [
        [0, 1, 2, 3, 4],
        [0, 1, 2, 5, 6],
        [0, 1, 2, 5, 6, 7],
        [8, 9],
    ]


def test_ancestors_are_intervals():
    ends, paths = runs.ends(TREE), runs.paths(TREE)
    for path in paths:
        q = int(path[-1])
        assert [k for k in range(10) if k <= q < ends[k]] == path.tolist()


def test_flat_rows_have_each_weight_once():
    flat = runs.flattened(TREE)
    assert flat.parents == ()
    assert flat.lengths == (5, 5, 6, 2)
    assert flat.ids.tolist() == [10, 11, 12, 13, 14, 10, 11, 12, 15, 16, 10, 11, 12, 15, 16, 17, 18, 19]
    assert flat.weights.tolist() == [0, 0, 1, 2, 3, 0, 0, 0, 4, 5, 0, 0, 0, 0, 0, 6, 0, 7]
    assert (flat.logprobs == -flat.weights).all()
    assert runs.flattened(flat) is flat


def test_flat_rows_are_trees_without_parents():
    flat = runs.flattened(TREE)
    assert runs.depths(flat).tolist() == [*range(5), *range(5), *range(6), 0, 1]
    assert runs.ends(flat).tolist() == [5] * 5 + [10] * 5 + [16] * 6 + [18] * 2
