"""Attention of a tree: each token sees its ancestors and itself, whatever branch lies between them in the row.

`tree_attention` has the form that transformers calls, so that any decoder whose layers go through its attention
interface runs a tree without knowing it; positions (depths) are given to the model beside the ids. On a CPU the row is
cut into blocks, each a causal or masked product with the keys of its own ancestors only, so that the work grows with
the pairs that see each other and not with the square of the row. On CUDA it is one FlexAttention call, whose block
mask leaves out what no pair needs.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AttentionInterface

NAME = "qwengyre_tree"
LONGEST_SEGMENT = 256
"""Longer runs are cut, so that a block leaves out most of the future of its tokens."""
CALL_COST = 64 * 64
"""What one more product costs beside its pairs, in pairs of a query and a key."""
_UNKNOWN = ("softcap", "s_aux", "position_bias")
"""What some models ask of their attention and this one does not do."""
Index = NDArray[np.int64]


@dataclass(frozen=True)
class Block:
    """The queries of segments [first, end) see the keys of `ancestors` (segments), then their own under `mask`.

    `mask` [queries, ancestors' tokens + queries] is True where a query sees a key.
    """

    first: int
    end: int
    ancestors: tuple[int, ...]
    mask: Tensor


@dataclass(frozen=True)
class Ancestry:
    """Who sees whom in a row of T tokens in depth-first order: k is seen by q iff k <= q < ends[k]."""

    ends: Index
    before: Index
    """The token that each one follows, -1 for the first of a sequence."""

    @cached_property
    def sizes(self) -> list[int]:
        """Tokens of each segment: a stretch of the row inside which every token follows the one before it."""
        return np.diff(self._cuts).tolist()

    @cached_property
    def blocks(self) -> list[Block]:
        """The row in blocks, in order: for each subtree one masked product, or one a segment, whichever is less."""
        cuts, parents = self._cuts, self._parents
        count = len(parents)
        ancestors: list[tuple[int, ...]] = []
        depths = np.zeros(count, np.int64)
        for s, parent in enumerate(parents):
            ancestors.append((*ancestors[parent], parent) if parent >= 0 else ())
            depths[s] = depths[parent] + self.sizes[parent] if parent >= 0 else 0
        last = np.searchsorted(cuts, self.ends[cuts[:-1]])  # the segment after the subtree of each
        apart = np.zeros(count)  # cost of a subtree in several products
        whole = np.zeros(count, np.bool_)
        for s in reversed(range(count)):
            size, tokens = self.sizes[s], int(cuts[last[s]] - cuts[s])
            apart[s] += size * (depths[s] + size) + CALL_COST
            together = tokens * (depths[s] + tokens) + CALL_COST
            whole[s] = together <= apart[s]
            apart[s] = min(apart[s], together)
            if parents[s] >= 0:
                apart[parents[s]] += apart[s]
        blocks: list[Block] = []
        s = 0
        while s < count:
            end = int(last[s]) if whole[s] else s + 1
            blocks.append(Block(s, end, ancestors[s], self._mask(s, end, int(depths[s]))))
            s = end
        return blocks

    @cached_property
    def _cuts(self) -> Index:
        """Where segments begin, and T: at runs, after branching points, and in long stretches."""
        size = len(self.ends)
        at = np.arange(size)
        jumps = np.flatnonzero(self.before != at - 1)
        begins = np.unique(np.concatenate([[0], jumps, self.before[jumps] + 1]))
        edges = [*begins.tolist(), size]
        pieces = [np.arange(a, b, LONGEST_SEGMENT) for a, b in pairwise(edges)]
        return np.concatenate([*pieces, [size]]).astype(np.int64)

    @cached_property
    def _parents(self) -> list[int]:
        """The segment that each segment continues, -1: none."""
        tokens = self.before[self._cuts[:-1]]
        return np.where(tokens < 0, -1, np.searchsorted(self._cuts, tokens, side="right") - 1).tolist()

    def _mask(self, first: int, end: int, depth: int) -> Tensor:
        start, stop = int(self._cuts[first]), int(self._cuts[end])
        at = np.arange(start, stop)
        inside = (at[None, :] <= at[:, None]) & (at[:, None] < self.ends[None, start:stop])
        return torch.from_numpy(np.concatenate([np.ones((len(at), depth), np.bool_), inside], 1))


class Tree:
    """What a forward pass needs of an `Ancestry`, made once for all layers: masks in the form of its products."""

    def __init__(self, ancestry: Ancestry) -> None:
        self.ancestry = ancestry
        self._masks: dict[tuple[int, torch.dtype], list[Tensor]] = {}
        self._flex: dict[torch.device, Any] = {}

    def masks(self, groups: int, dtype: torch.dtype) -> list[Tensor]:
        """Of each block, additive, for `groups` query heads a key head folded into rows [groups * queries, keys]."""
        if (groups, dtype) not in self._masks:
            self._masks[groups, dtype] = [
                torch.zeros(block.mask.shape, dtype=dtype).masked_fill_(~block.mask, float("-inf")).repeat(groups, 1)
                for block in self.ancestry.blocks
            ]
        return self._masks[groups, dtype]

    def block_mask(self, device: torch.device) -> Any:
        """FlexAttention's mask of the row on `device`."""
        if device not in self._flex:
            self._flex[device] = _block_mask(self.ancestry.ends, device)
        return self._flex[device]


def tree_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """[1, T, heads, width] of query [1, heads, T, width], key and value [1, key heads, T, width].

    Raises NotImplementedError for a model whose attention is more than scores of queries and keys.
    """
    extra = [name for name in _UNKNOWN if kwargs.get(name) is not None]
    if extra or attention_mask is not None:
        raise NotImplementedError(f"{type(module).__name__} asks for {extra or 'a mask of its own'} in its attention")
    tree: Tree = kwargs["tree"]
    attend = _by_blocks if query.device.type == "cpu" else _by_flex
    return attend(query, key, value, tree, kwargs.get("scaling")).transpose(1, 2).contiguous(), None


def _by_blocks(query: Tensor, key: Tensor, value: Tensor, tree: Tree, scale: float | None) -> Tensor:
    """Query heads of one key head are folded into rows, so that keys are never repeated. [1, heads, T, width]"""
    sizes, blocks = tree.ancestry.sizes, tree.ancestry.blocks
    heads, groups = key.shape[1], query.shape[1] // key.shape[1]
    keys, values = key.split(sizes, 2), value.split(sizes, 2)  # one backward for all slices
    queries = query.unflatten(1, (heads, groups)).split([sum(sizes[b.first : b.end]) for b in blocks], 3)
    made: list[Tensor] = []
    for block, own, mask in zip(blocks, queries, tree.masks(groups, query.dtype), strict=True):
        seen = (*block.ancestors, *range(block.first, block.end))
        block_keys, block_values = _joined(keys, seen), _joined(values, seen)
        out = F.scaled_dot_product_attention(own.flatten(2, 3), block_keys, block_values, mask, scale=scale)
        made.append(out.unflatten(2, (groups, -1)))
    return torch.cat(made, 3).flatten(1, 2)


def _joined(parts: Sequence[Tensor], which: Sequence[int]) -> Tensor:
    return torch.cat([parts[s] for s in which], 2) if len(which) > 1 else parts[which[0]]


def _by_flex(query: Tensor, key: Tensor, value: Tensor, tree: Tree, scale: float | None) -> Tensor:
    grouped = query.shape[1] != key.shape[1]
    return _flex()(query, key, value, block_mask=tree.block_mask(query.device), scale=scale, enable_gqa=grouped)


@cache
def _flex() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=True)


def _block_mask(ends: Index, device: torch.device) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    until = torch.from_numpy(ends).to(device)
    return create_block_mask(
        lambda batch, head, q, k: (k <= q) & (q < until[k]), None, None, len(ends), len(ends), device=str(device)
    )


@contextmanager
def as_tree(model: nn.Module) -> Iterator[None]:
    """The model's layers attend by `tree_attention` meanwhile: give its forward `tree` and `position_ids`."""
    configs = {id(config): config for config in (getattr(m, "config", None) for m in model.modules()) if config}
    before = [(config, config._attn_implementation_internal) for config in configs.values()]
    try:
        for config, _ in before:
            config._attn_implementation_internal = NAME
        yield
    finally:
        for config, name in before:
            config._attn_implementation_internal = name


AttentionInterface.register(NAME, tree_attention)
