"""Which tokens of weighted sequences are the same computation: equal prefixes, told by keys.

A token's key says when it may stand once for several sequences, given that all before it do: context by its id,
whoever's it is; a sampled token only as itself (the same row of the same execution), never as another execution's.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from qwengyre.types import Ids

Keys = NDArray[np.int64]
_ENDED = -1


def keys_of(ids: Ids, rows: Ids, base: int) -> Keys:
    """One key a token (int64, none negative). `rows` as in `Trajectory`; `base` + row is unique in the group."""
    named = np.where(rows < 0, np.int64(0), rows + np.int64(base + 1))
    return (named << 32) | ids


def owners(keys: Keys) -> Ids:
    """Which sampled row, of all the group's, each token belongs to (int32, from 1); 0 for context."""
    return (keys >> 32).astype(np.int32)


def depth_first(keys: Sequence[Keys]) -> tuple[list[int], list[int]]:
    """An order in which sequences that share a prefix are neighbours, and how much each shares with the one before.

    A sequence that is a prefix of others follows one of them, so that it adds no token. Otherwise the given order is
    kept.
    """
    order: list[int] = []
    shared: list[int] = []
    waiting = [(list(range(len(keys))), 0, 0)] if keys else []
    while waiting:  # sequences that agree on their first `depth` tokens; what the first of them shares with its left
        group, depth, left = waiting.pop()
        if len(group) == 1:
            order.append(group[0])
            shared.append(left)
            continue
        depth = _common(keys, group, depth)
        branches: dict[int, list[int]] = {}
        for k in group:
            branches.setdefault(int(keys[k][depth]) if depth < len(keys[k]) else _ENDED, []).append(k)
        ended = [[k] for k in branches.pop(_ENDED, [])]
        parts = [*branches.values(), *ended]
        waiting += [(part, depth, depth if n else left) for n, part in reversed(list(enumerate(parts)))]
    return order, shared


def _common(keys: Sequence[Keys], group: Sequence[int], known: int) -> int:
    """How many tokens all of the group share; they share the first `known`."""
    first, end = keys[group[0]], min(len(keys[k]) for k in group)
    for k in group[1:]:
        differ = np.flatnonzero(first[known:end] != keys[k][known:end])
        end = known + int(differ[0]) if len(differ) else end
    return end
