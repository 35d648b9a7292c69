"""Micro-steps to what a model runs: padded rows of like length, or one tree, and where logits are needed.

Padding stands on the right: under causal attention no real token sees it, so no attention mask is needed, and the
same batch is exact for every causal model of transformers (sliding windows and recurrent layers too).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from qwengyre.trainer.attention import Ancestry, Tree
from qwengyre.trajectory import runs
from qwengyre.types import MicroStep

PADDING = 0.125
"""A row may be shorter than its batch by this fraction; a shorter one begins the next batch."""


@dataclass(frozen=True)
class Batch:
    """Some rows of a micro-step, right-padded, B x L; or a tree, 1 x T, with the positions of its tokens.

    `rows_N` are the flat positions (in B*L) whose logits predict the N targets; `targets_N` the indices of these
    targets among the micro-step's tokens.
    """

    ids_BL: Tensor
    rows_N: Tensor
    targets_N: Tensor
    positions_BL: Tensor | None = None
    tree: Tree | None = None


def tree_batch(micro_step: MicroStep, wanted: np.ndarray) -> Batch:
    """The whole tree in one row. `wanted` (bool, T) marks the targets; a sequence's first token is none."""
    before = runs.before(micro_step)
    targets = np.flatnonzero(wanted)
    return Batch(
        torch.from_numpy(micro_step.ids.astype(np.int64))[None],
        torch.from_numpy(before[targets]),
        torch.from_numpy(targets),
        torch.from_numpy(runs.depths(micro_step))[None],
        Tree(Ancestry(runs.ends(micro_step), before)),
    )


def batches(ids: Tensor, lengths: Sequence[int], wanted: np.ndarray) -> list[Batch]:
    """Cut flat `ids` (int64, T) into batches. `wanted` (bool, T) marks the targets; a sequence's first token is none.

    Batches without a target are left out.
    """
    starts = [0, *accumulate(lengths)][:-1]
    order = sorted(range(len(lengths)), key=lambda s: -lengths[s])
    groups: list[list[int]] = []
    for s in order:
        if groups and lengths[s] >= (1 - PADDING) * lengths[groups[-1][0]]:
            groups[-1].append(s)
        else:
            groups.append([s])
    made = [_batch(ids, [(starts[s], lengths[s]) for s in group], wanted) for group in groups]
    return [batch for batch in made if len(batch.targets_N)]


def _batch(ids: Tensor, spans: list[tuple[int, int]], wanted: np.ndarray) -> Batch:
    longest = spans[0][1]
    ids_BL = torch.zeros(len(spans), longest, dtype=torch.int64)
    rows: list[np.ndarray] = []
    targets: list[np.ndarray] = []
    for b, (start, length) in enumerate(spans):
        ids_BL[b, :length] = ids[start : start + length]
        inside = np.flatnonzero(wanted[start : start + length])
        rows.append(b * longest + inside - 1)
        targets.append(start + inside)
    return Batch(ids_BL, torch.from_numpy(np.concatenate(rows)), torch.from_numpy(np.concatenate(targets)))
