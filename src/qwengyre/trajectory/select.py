"""From a tree to at most Jmax trajectories: which sampled tokens of an execution train, each of them once.

From the highest class that still has unmasked trainable tokens, draw a leaf with probability proportional to those of
its path; take the path from the root; mask it; repeat until nothing is left or Jmax are taken. A pick costs one pass
over the rows (not the tokens), and token arrays are only built for picks that are trained (`trajectory`).
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from qwengyre.trajectory.roles import PRIORITY, LeafRole
from qwengyre.trajectory.tree import ROOT, Tree
from qwengyre.types import ExecutionId, Ids, Kind, Trajectory

_STREAM = 0x53454C
"""Keeps this use of the run's seed apart from every other one."""


@dataclass(frozen=True)
class Pick:
    """A drawn leaf. `rows` are the sampled rows of its path that no earlier pick took; `tokens` their targets."""

    leaf: int
    role: str
    rows: tuple[int, ...]
    tokens: int


def rng_for(seed: int, execution: ExecutionId) -> np.random.Generator:
    """The execution's own generator: a selection does not depend on which execution ended first."""
    return np.random.default_rng([seed, _STREAM, execution.group, execution.member])


def trainable(tree: Tree) -> list[int]:
    """Targets of each row: its tokens if SAMPLED and not withheld, less one at the root (it has no context)."""
    return [
        max(tree.ends[row] - (tree.ends[row - 1] if row else 0) - (tree.parents[row] == ROOT), 0)
        if kind is Kind.SAMPLED and row not in tree.withheld
        else 0
        for row, kind in enumerate(tree.kinds)
    ]


def select(tree: Tree, roles: Mapping[int, LeafRole], rng: np.random.Generator, jmax: int) -> list[Pick]:
    """At most `jmax` picks, in the order drawn. Every leaf needs an entry in `roles`; `auxiliary` is never drawn."""
    left = trainable(tree)
    classes = [[leaf for leaf in tree.leaves() if roles[leaf].role == role] for role in PRIORITY]
    picks: list[Pick] = []
    for role, leaves in zip(PRIORITY, classes, strict=True):
        while leaves and len(picks) < jmax:
            on_path = _path_sums(tree, left)
            ends = list(accumulate(on_path[leaf] for leaf in leaves))
            if not ends[-1]:
                break
            leaf = leaves[bisect_right(ends, int(rng.integers(ends[-1])))]
            rows = tuple(row for row in tree.path(leaf) if left[row])
            picks.append(Pick(leaf, role, rows, on_path[leaf]))
            for row in rows:
                left[row] = 0
    return picks


def _path_sums(tree: Tree, left: list[int]) -> list[int]:
    """For each row, what is left on its path from the root. Parents come before children, so one pass will do."""
    sums: list[int] = []
    for own, parent in zip(left, tree.parents, strict=True):
        sums.append(own if parent == ROOT else own + sums[parent])
    return sums


def trajectory(tree: Tree, pick: Pick, execution: ExecutionId) -> Trajectory:
    """The pick's whole path as arrays. Raises ValueError when its rows were sampled at different temperatures."""
    chosen = set(pick.rows)
    temperatures = {tree.temperatures[row] for row in chosen}
    if len(temperatures) != 1:
        raise ValueError(f"execution {execution}: rows sampled at temperatures {sorted(temperatures)} on one path")
    selected = np.zeros(tree.lengths[pick.leaf], np.bool_)
    for row in pick.rows:
        end = tree.lengths[row]
        selected[max(end - len(tree.ids(row)), 1) : end] = True
    return Trajectory(
        execution=execution,
        leaf=pick.leaf,
        role=pick.role,
        ids=tree.path_ids(pick.leaf),
        logprobs=tree.path_logprobs(pick.leaf),
        selected=selected,
        temperature=temperatures.pop(),
        versions=_versions(tree, pick),
        rows=_sampled_rows(tree, pick.leaf),
    )


def _sampled_rows(tree: Tree, leaf: int) -> Ids:
    """The row of each sampled token of the path, -1 elsewhere (int32, T)."""
    rows = tree.path(leaf)
    named = np.array([row if tree.kinds[row] is Kind.SAMPLED else -1 for row in rows], np.int32)
    return np.repeat(named, [len(tree.ids(row)) for row in rows])


def _versions(tree: Tree, pick: Pick) -> tuple[tuple[int, int], ...]:
    """Runs (end, version) over the pick's targets, equal neighbours merged."""
    runs: list[tuple[int, int]] = []
    before = 0
    for row in pick.rows:
        untrained = int(tree.parents[row] == ROOT)  # the first token of the path
        for end, version in tree.versions[row]:
            if end <= untrained:
                continue
            if runs and runs[-1][1] == version:
                runs.pop()
            runs.append((before + end - untrained, version))
        before += len(tree.ids(row)) - untrained
    return tuple(runs)
