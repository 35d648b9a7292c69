"""Attention of packed tokens over the keys and values of their own sequences.

One forward pass carries N tokens of many sequences: first one token of each decoding sequence (grouped by slab), then
chunks of prefilling sequences. Grouped-query attention folds the G query heads of a key head into query rows, so
keys and values are never repeated; they are read in place, as views.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qwengyre.engine.kv import LayerViews

_NEVER = float("-inf")


@dataclass(frozen=True)
class DecodeRows:
    """One token of each of the rows 0..count-1 of a slab: packed tokens [start, start + count).

    `views` are the slab's, one a layer. `slots` [count] int64 = row * row_tokens + position of the new token;
    `longest` counts the new token.
    `mask` [count, 1, 1, longest] float (0 or -inf), None when all rows are equally long.
    """

    views: list[LayerViews]
    start: int
    count: int
    longest: int
    slots: Tensor
    mask: Tensor | None


@dataclass(frozen=True)
class PrefillSpan:
    """`count` tokens of one sequence after `offset` that are in its strip: packed tokens [start, start + count).

    `mask` [G * count, offset + count] float (0 or -inf).
    """

    strip: Tensor
    start: int
    count: int
    offset: int
    mask: Tensor


@dataclass(frozen=True)
class Plan:
    """All of one forward pass."""

    rows: tuple[DecodeRows, ...]
    spans: tuple[PrefillSpan, ...]


def decode_mask(lengths: Tensor, longest: int) -> Tensor:
    """[n] lengths -> [n, 1, 1, longest] additive mask."""
    beyond = torch.arange(longest, device=lengths.device)[None, :] >= lengths[:, None]
    return torch.zeros(beyond.shape, device=lengths.device).masked_fill_(beyond, _NEVER)[:, None, None]


def prefill_mask(count: int, offset: int, groups: int, device: torch.device) -> Tensor:
    """Causal additive mask [groups * count, offset + count]; query row g * count + i sees keys 0..offset+i."""
    mask = torch.full((count, offset + count), _NEVER, device=device).triu_(offset + 1)
    return mask.repeat(groups, 1)


def attend(layer: int, query: Tensor, key: Tensor, value: Tensor, plan: Plan, scale: float | None = None) -> Tensor:
    """Store the new keys and values, attend, and return [N, heads * groups * width].

    query [N, heads, groups, width]; key and value [N, heads, width] of the same N packed tokens.
    """
    packed = (query, key, value)
    parts = [*plan.rows, *plan.spans]
    if len(parts) == 1:
        return _attend_part(layer, packed, parts[0], scale).flatten(1)
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    for part in parts:
        end = part.start + part.count
        mine = (query[part.start : end], key[part.start : end], value[part.start : end])
        out[part.start : end] = _attend_part(layer, mine, part, scale)
    return out.flatten(1)


def _attend_part(
    layer: int, packed: tuple[Tensor, Tensor, Tensor], part: DecodeRows | PrefillSpan, scale: float | None
) -> Tensor:
    """[count, heads, groups, width] of the tokens of one part."""
    if isinstance(part, DecodeRows):
        return _decode(layer, packed, part, scale)
    return _prefill(layer, packed, part, scale)


def _decode(layer: int, packed: tuple[Tensor, Tensor, Tensor], rows: DecodeRows, scale: float | None) -> Tensor:
    query, key, value = packed
    views = rows.views[layer]
    views.key_slots.index_copy_(0, rows.slots, key)
    views.value_slots.index_copy_(0, rows.slots, value)
    seen_keys = views.keys[: rows.count, :, : rows.longest]
    seen_values = views.values[: rows.count, :, : rows.longest]
    return F.scaled_dot_product_attention(query, seen_keys, seen_values, rows.mask, scale=scale)


def _prefill(layer: int, packed: tuple[Tensor, Tensor, Tensor], span: PrefillSpan, scale: float | None) -> Tensor:
    query, key, value = packed
    end = span.offset + span.count
    span.strip[0, layer, span.offset : end].copy_(key)
    span.strip[1, layer, span.offset : end].copy_(value)
    seen_keys = span.strip[0, layer, :end].transpose(0, 1)
    seen_values = span.strip[1, layer, :end].transpose(0, 1)
    folded = query.permute(1, 2, 0, 3).flatten(1, 2)  # [heads, groups * count, width]
    result = F.scaled_dot_product_attention(folded[None], seen_keys[None], seen_values[None], span.mask, scale=scale)
    return result[0].unflatten(1, (query.shape[2], span.count)).permute(2, 0, 1, 3)


def packed_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """`attend` in the form that transformers calls: query [1, H, N, width], key and value [1, heads, N, width]."""
    heads = key.shape[1]
    folded = query[0].transpose(0, 1).unflatten(1, (heads, -1))
    packed = (folded, key[0].transpose(0, 1), value[0].transpose(0, 1))
    out = attend(module.layer_idx, *packed, kwargs["plan"], kwargs.get("scaling"))
    return out[None], None
