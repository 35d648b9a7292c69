"""One token for every row of logits: inverse-CDF sampling from per-call random numbers, and recorded log-probs."""

import torch
import torch.nn.functional as F
from torch import Tensor

_BLOCKS = (256, 128, 64)


def sample(logits: Tensor, temperatures: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Sample one id a row.

    logits [n, V] float32 (destroyed), temperatures [n] float32 (0 = greedy), uniforms [n] float32 in [0, 1).
    Returns ids [n] int64 and log-probs [n] float32 = log_softmax(logits / T)[id], T = 1 for greedy rows.
    A row that is not finite gives a log-prob that is not. The id of a row depends on nothing but the row's logits,
    temperature and uniform number.
    """
    greedy = temperatures == 0
    if not bool((temperatures == 1).all()):
        logits.div_(temperatures.masked_fill(greedy, 1.0)[:, None])
    probabilities = logits.softmax(-1)
    best = probabilities.argmax(-1) if bool(greedy.any()) else None
    ids = best if bool(greedy.all()) else _inverse_cdf(probabilities, uniforms)
    assert ids is not None
    if best is not None:
        ids = torch.where(greedy, best, ids)
    return ids, probabilities.gather(1, ids[:, None])[:, 0].log()


def _inverse_cdf(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """First id whose cumulative probability exceeds the uniform number; never an id of probability 0.

    In two levels, so that the running sum is over blocks of the vocabulary and then inside one of them only.
    """
    vocabulary = probabilities.shape[1]
    block = next((size for size in _BLOCKS if vocabulary % size == 0), _BLOCKS[-1])
    blocks = F.pad(probabilities, (0, -vocabulary % block)).unflatten(1, (-1, block))
    outer = blocks.sum(-1)
    picked, rest = _exceeding(outer, uniforms * outer.sum(-1))
    inner = blocks.gather(1, picked[:, None, None].expand(-1, 1, block))[:, 0]
    within, _ = _exceeding(inner, rest)
    return (picked * block + within).clamp_(max=vocabulary - 1)  # rows that are not finite exceed nowhere


def _exceeding(weights: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """First index a row whose running sum exceeds `target` (the last positive one if none does), and what of the
    target is left there. weights [n, k], target [n]."""
    running = weights.cumsum(-1)
    total = running[:, -1].contiguous()
    target = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))[:, None]
    index = torch.searchsorted(running, target, right=True).clamp_(max=weights.shape[1] - 1)
    return index[:, 0], (target - (running - weights).gather(1, index))[:, 0].clamp_(min=0.0)
