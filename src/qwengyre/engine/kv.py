"""Keys and values: slabs of rows for sequences that decode, strips for those that prefill or rest.

A **slab** holds the rows of all decoding sequences of one size class, gapless from row 0, so that attention over them
is one call on a view. A **strip** is one sequence's own tensor of exact length. Nothing grows token by token: a
row that is full is copied once into the next class (about 1.4 times larger).
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from qwengyre.types import Ids

_SMALLEST_ROW = 64
_FIRST_ROWS = 4
LEAST_SHARED = 16
"""Shorter common prefixes are computed again rather than looked for."""


@dataclass(frozen=True)
class KVShape:
    """Geometry of a model's keys and values: [2 (K, V), layers, ..., heads, width] of `dtype` on `device`.

    `groups` are the query heads of one key head.
    """

    layers: int
    heads: int
    groups: int
    width: int
    dtype: torch.dtype
    device: torch.device

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values."""
        return 2 * self.layers * self.heads * self.width * self.dtype.itemsize

    def strip(self, tokens: int) -> Tensor:
        """An uninitialised strip [2, layers, tokens, heads, width]."""
        return self._empty(tokens)

    def slab(self, rows: int, tokens: int) -> Tensor:
        """A slab [2, layers, rows, tokens, heads, width] of zeros: padding is read, under a mask."""
        return self._empty(rows, tokens).zero_()

    def _empty(self, *sizes: int) -> Tensor:
        return torch.empty(2, self.layers, *sizes, self.heads, self.width, dtype=self.dtype, device=self.device)


class LayerViews(NamedTuple):
    """One layer of a slab, seen in two ways: slots [rows * tokens, heads, width], and [rows, heads, tokens, width]."""

    key_slots: Tensor
    value_slots: Tensor
    keys: Tensor
    values: Tensor


def layer_views(slab: Tensor) -> list[LayerViews]:
    """The views of all layers of a slab [2, layers, rows, tokens, heads, width]."""
    slots, transposed = slab.flatten(2, 3), slab.transpose(3, 4)
    return [
        LayerViews(slots[0, layer], slots[1, layer], transposed[0, layer], transposed[1, layer])
        for layer in range(slab.shape[1])
    ]


def row_class(tokens: int, window: int) -> int:
    """Smallest size class that holds `tokens`: 64, 96, 128, 192, 256, ... capped at `window`."""
    size = _SMALLEST_ROW
    while size < tokens:
        size = size * 3 // 2 if size & (size - 1) == 0 else size // 3 * 4
    return min(size, window)


class Slab:
    """Rows of `tokens` tokens each. `owners[r]` has row r; rows are gapless: the last row fills a hole."""

    def __init__(self, shape: KVShape, tokens: int) -> None:
        self.tokens = tokens
        self.owners: list[object] = []
        self.data = shape.slab(_FIRST_ROWS, tokens)
        self.views = layer_views(self.data)
        self._shape = shape

    def add(self, owner: object, source: Tensor) -> None:
        """Append a row for `owner` with the contents of `source` [2, layers, n, heads, width]."""
        row = len(self.owners)
        if row == self.data.shape[2]:
            larger = self._shape.slab(2 * row, self.tokens)
            larger[:, :, :row].copy_(self.data)
            self.data, self.views = larger, layer_views(larger)
        self.owners.append(owner)
        self.data[:, :, row, : source.shape[2]].copy_(source)

    def view(self, row: int, tokens: int) -> Tensor:
        """The first `tokens` tokens of a row: [2, layers, tokens, heads, width], a view."""
        return self.data[:, :, row, :tokens]

    def remove(self, row: int, last_tokens: int) -> object | None:
        """Free a row. Returns the owner that moved into it from the last row (of `last_tokens` tokens), if any."""
        mover = self.owners.pop()
        if row == len(self.owners):
            return None
        self.owners[row] = mover
        self.view(row, last_tokens).copy_(self.view(len(self.owners), last_tokens))
        return mover


def common_prefix(a: Ids, b: Ids) -> int:
    """Length of the common prefix of two id arrays."""
    n = min(len(a), len(b))
    differs = a[:n] != b[:n]
    first = int(differs.argmax()) if n else 0
    return first if n and differs[first] else n


def prefix_key(ids: Ids) -> bytes:
    """Sequences whose keys differ have no common prefix worth looking for."""
    return ids[:LEAST_SHARED].tobytes()


@dataclass(eq=False)
class Resting:
    """Keys and values `strip` [2, layers, T, heads, width] of `ids` that no call is writing to.

    `version` is the oldest weight set that made any of them; `handles` maps each execution that left some of them to
    how many tokens are its own.
    """

    ids: Ids
    strip: Tensor
    version: int = 0
    handles: dict[str, int] = field(default_factory=dict[str, int])


class PrefixCache:
    """Resting prefixes by their ids, least recently used first. None repeats another's prefix."""

    def __init__(self) -> None:
        self._resting: OrderedDict[int, Resting] = OrderedDict()
        self._alike: dict[bytes, list[int]] = {}
        self._next = 0
        self.tokens = 0

    def __len__(self) -> int:
        return len(self._resting)

    def put(self, resting: Resting) -> None:
        """Keep it; those that hold a prefix of its ids go, their handles with their lengths are its own too."""
        ids = resting.ids
        for key in list(self._alike.get(prefix_key(ids), ())):
            old = self._resting[key]
            if len(old.ids) <= len(ids) and np.array_equal(old.ids, ids[: len(old.ids)]):
                resting.handles = old.handles | resting.handles
                self._drop(key)
        self._resting[self._next] = resting
        self._alike.setdefault(prefix_key(ids), []).append(self._next)
        self._next += 1
        self.tokens += len(ids)

    def find(self, ids: Ids) -> tuple[int, Resting | None]:
        """Longest common prefix of `ids` with a resting one, which becomes the most recently used.
        (0, None) when none shares at least LEAST_SHARED ids."""
        best, found = LEAST_SHARED - 1, None
        for key in self._alike.get(prefix_key(ids), ()):
            length = common_prefix(self._resting[key].ids, ids)
            if length > best:
                best, found = length, key
        if found is None:
            return 0, None
        self._resting.move_to_end(found)
        return best, self._resting[found]

    def holder(self, ids: Ids) -> Resting | None:
        """One that holds all of `ids`."""
        for key in self._alike.get(prefix_key(ids), ()):
            if common_prefix(self._resting[key].ids, ids) == len(ids):
                return self._resting[key]
        return None

    def take(self, handles: frozenset[str]) -> list[Resting]:
        """Remove and return what these executions left."""
        keys = [key for key, resting in self._resting.items() if handles & resting.handles.keys()]
        return [self._drop(key) for key in keys]

    def evict(self) -> bool:
        """Drop the least recently used. False when there is none."""
        if not self._resting:
            return False
        self._drop(next(iter(self._resting)))
        return True

    def clear(self) -> None:
        """Drop everything."""
        self._resting.clear()
        self._alike.clear()
        self.tokens = 0

    def _drop(self, key: int) -> Resting:
        resting = self._resting.pop(key)
        self.tokens -= len(resting.ids)
        alike = self._alike[prefix_key(resting.ids)]
        alike.remove(key)
        if not alike:
            del self._alike[prefix_key(resting.ids)]
        return resting
