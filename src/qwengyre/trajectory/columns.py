"""A finished tree as a few flat arrays, and back. What can be written once, mapped, and compared byte for byte.

Tokens are not copied on the way back: a tree made of mapped arrays reads them from the file, and takes memory for its
rows only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qwengyre.trajectory.tree import Tree
from qwengyre.types import Kind

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Columns:
    """`threads`: names, as the rows number them. `arrays`, of n rows, m version runs and T tokens:
    `temperatures` (float64, a sampled row each, in order), `rows` (int32, n x 6: parent, end, length of its path, kind,
    call, thread), `runs` (int32, m x 3: sampled row, end in the row, weight version), `withheld` (int32, rows), `ids`
    (int32, T), `logprobs` (float32, T)."""

    threads: tuple[str, ...]
    arrays: Arrays

    @property
    def nbytes(self) -> int:
        """Of all arrays."""
        return sum(array.nbytes for array in self.arrays.values())


def columns(tree: Tree) -> Columns:
    """Equal trees give equal arrays. Token arrays are views of the tree's own."""
    threads = tuple(dict.fromkeys(tree.threads))
    number = {name: n for n, name in enumerate(threads)}
    of_thread = [number[name] for name in tree.threads]
    rows = zip(tree.parents, tree.ends, tree.lengths, map(int, tree.kinds), tree.calls, of_thread, strict=True)
    runs = [(row, end, version) for row, found in sorted(tree.versions.items()) for end, version in found]
    arrays = {
        "temperatures": np.array([tree.temperatures[row] for row in sorted(tree.temperatures)], np.float64),
        "rows": _table(list(rows), 6),
        "runs": _table(runs, 3),
        "withheld": np.array(sorted(tree.withheld), np.int32),
        "ids": tree.all_ids,
        "logprobs": tree.all_logprobs,
    }
    return Columns(threads, arrays)


def thaw(found: Columns) -> Tree:
    """The tree again. It may grow: its new tokens go to arrays of its own."""
    arrays = found.arrays
    tree = Tree(arrays["ids"], arrays["logprobs"])
    parents, ends, lengths, kinds, calls, threads = arrays["rows"].T.tolist()
    tree.restore(parents, ends, lengths, [Kind(kind) for kind in kinds])
    tree.calls, tree.threads = calls, [found.threads[n] for n in threads]
    tree.withheld = set(arrays["withheld"].tolist())
    sampled = [row for row, kind in enumerate(tree.kinds) if kind is Kind.SAMPLED]
    runs: dict[int, list[tuple[int, int]]] = {row: [] for row in sampled}
    for row, end, version in arrays["runs"].tolist():
        runs[row].append((end, version))
    tree.versions = {row: tuple(of_row) for row, of_row in runs.items()}
    tree.temperatures = dict(zip(sampled, arrays["temperatures"].tolist(), strict=True))
    return tree


def _table(rows: Sequence[tuple[int, ...]], width: int) -> NDArray[np.int32]:
    return np.array(rows, np.int32).reshape(-1, width)
