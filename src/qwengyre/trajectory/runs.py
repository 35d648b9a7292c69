"""The geometry of a micro-step: flat rows or a tree, told by `lengths` and `parents` alone (see `MicroStep`).

Depth-first order makes ancestry an interval: token k is an ancestor of token q (or q itself) iff k <= q < ends[k].
"""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from qwengyre.types import MicroStep

Index = NDArray[np.int64]


def starts(micro_step: MicroStep) -> list[int]:
    """Index of the first token of each run."""
    return [0, *accumulate(micro_step.lengths)][:-1]


def before(micro_step: MicroStep) -> Index:
    """Index of the token that precedes each token in its sequence, -1 for the first (int64, T)."""
    found = np.arange(-1, micro_step.tokens - 1)
    found[starts(micro_step)] = micro_step.parents or -1
    return found


def paths(micro_step: MicroStep) -> list[Index]:
    """For each run, the indices of its whole sequence, from the root to the run's end."""
    begins = starts(micro_step)
    found: list[Index] = []
    for start, length, parent in zip(begins, micro_step.lengths, _parents(micro_step), strict=True):
        own = np.arange(start, start + length)
        found.append(np.concatenate([path(micro_step, found, parent), own]) if parent >= 0 else own)
    return found


def path(micro_step: MicroStep, known: Sequence[Index], token: int) -> Index:
    """Indices from the root to `token`, both included; `known` are the paths of the runs up to the token's own."""
    run = int(np.searchsorted(starts(micro_step), token, side="right")) - 1
    whole = known[run]
    return whole[: len(whole) - (starts(micro_step)[run] + micro_step.lengths[run] - 1 - token)]


def depths(micro_step: MicroStep) -> Index:
    """How many tokens precede each token in its sequence: its position (int64, T)."""
    found = np.empty(micro_step.tokens, np.int64)
    for start, length, parent in zip(starts(micro_step), micro_step.lengths, _parents(micro_step), strict=True):
        first = int(found[parent]) + 1 if parent >= 0 else 0
        found[start : start + length] = np.arange(first, first + length)
    return found


def ends(micro_step: MicroStep) -> Index:
    """Where the descendants of each token end (int64, T): it and they are the tokens [t, ends[t])."""
    found = np.full(micro_step.tokens, micro_step.tokens, np.int64)
    depth = depths(micro_step)
    open_path = np.empty(0, np.int64)
    for start, length in zip(starts(micro_step), micro_step.lengths, strict=True):
        kept = int(depth[start])
        found[open_path[kept:]] = start
        open_path = np.concatenate([open_path[:kept], np.arange(start, start + length)])
    return found


def flattened(micro_step: MicroStep) -> MicroStep:
    """The same objective in flat rows: each run with all that it continues; a weight stays at the run's own token."""
    if not micro_step.parents:
        return micro_step
    rows = paths(micro_step)
    order = np.concatenate(rows)
    own = np.concatenate([row >= start for row, start in zip(rows, starts(micro_step), strict=True)])
    return MicroStep(
        name=micro_step.name,
        group=micro_step.group,
        ids=micro_step.ids[order],
        lengths=tuple(map(len, rows)),
        weights=np.where(own, micro_step.weights[order], np.float32(0)),
        logprobs=np.where(own, micro_step.logprobs[order], np.float32(0)),
        temperature=micro_step.temperature,
        calls=None if micro_step.calls is None else micro_step.calls[order],
        shares=None if micro_step.shares is None else np.where(own, micro_step.shares[order], np.float32(0)),
    )


def calls(micro_step: MicroStep) -> Index:
    """The model call of each target, as a number (int64, T). Elsewhere it says nothing."""
    if micro_step.calls is not None:
        return micro_step.calls.astype(np.int64)
    wanted = micro_step.wanted
    follows = wanted & np.concatenate([[False], wanted[:-1]])
    follows[starts(micro_step)] = False
    return np.cumsum(~follows, dtype=np.int64)


def _parents(micro_step: MicroStep) -> tuple[int, ...]:
    return micro_step.parents or (-1,) * len(micro_step.lengths)
