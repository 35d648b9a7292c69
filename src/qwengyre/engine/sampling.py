"""One token for every row of logits: inverse-CDF sampling from per-call random numbers, and recorded log-probs."""

import torch
from torch import Tensor


def sample(logits: Tensor, temperatures: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Sample one id a row.

    logits [n, V] float32 (destroyed), temperatures [n] float32 (0 = greedy), uniforms [n] float32 in [0, 1).
    Returns ids [n] int64 and log-probs [n] float32 = log_softmax(logits / T)[id], T = 1 for greedy rows.
    The id of a row depends on nothing but the row's logits, temperature and uniform number.
    """
    greedy = temperatures == 0
    divisors = torch.where(greedy, torch.ones_like(temperatures), temperatures)
    scaled = logits.div_(divisors[:, None])
    normaliser = scaled.logsumexp(-1)
    ids = scaled.argmax(-1) if bool(greedy.any()) else None
    if not bool(greedy.all()):
        drawn = _inverse_cdf(scaled, normaliser, uniforms)
        ids = drawn if ids is None else torch.where(greedy, ids, drawn)
    assert ids is not None
    return ids, scaled.gather(1, ids[:, None])[:, 0] - normaliser


def _inverse_cdf(scaled: Tensor, normaliser: Tensor, uniforms: Tensor) -> Tensor:
    """First id whose cumulative probability exceeds the uniform number. Never an id of probability 0."""
    cumulative = (scaled - normaliser[:, None]).exp_().cumsum_(-1)
    total = cumulative[:, -1]
    below = torch.nextafter(total, torch.zeros_like(total))
    target = torch.minimum(uniforms * total, below)
    return torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]
