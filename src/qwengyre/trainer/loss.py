"""The losses, each one visible formula over the weighted targets of a micro-step. N targets, vocabulary V.

    gap = logp - recorded,   ratio = exp(gap)
    cispo   - sum of  weight * sg(ratio kept in [0, 5]) * logp                                   over targets
    ppo     - sum of  min(ratio * weight, (ratio kept in [0.8, 1.28]) * weight)                  over targets
    gspo    the same with [1 - 3e-4, 1 + 4e-4] for exp(mean gap of a call) and the call's weight, over model calls

    kl_coefficient * KL - entropy_coefficient * entropy, each with weight 1 / T_e, may be added: see `beside`.

The bounds are defaults (`trainer.clip`). At ratio 1 all three have the same gradient, that of - sum of weight * logp.
`ppo` and `gspo` also cap a ratio at 3 where the weight is negative: a token that has become likely by far must not
outweigh all others. `logp` is the log-probability under the distribution that was sampled: fp32 log-softmax of
logits / temperature. Only targets come here, so nothing masked can form 0 x inf. The weight holds advantage and
normalisation.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import log
from typing import NamedTuple

import torch
from torch import Tensor

DUAL = 3.0
"""The highest ratio of `ppo` and `gspo` under a negative weight."""
_FINITE = 20.0
"""Largest gap in the sums that describe ratios."""


class Targets(NamedTuple):
    """What a loss sees of N targets. `calls_N` (int64) is equal for the tokens of one model call; all of a call's are
    here."""

    logp_N: Tensor
    recorded_N: Tensor
    weights_N: Tensor
    calls_N: Tensor


class Made(NamedTuple):
    """The scalar loss, and which targets have no gradient, or a smaller one, because of the bounds (bool, N)."""

    loss: Tensor
    clipped_N: Tensor


@dataclass(frozen=True)
class Loss:
    """A formula and the ratios between which it follows the data, if the configuration does not say others."""

    formula: Callable[[Targets, float, float], Made]
    low: float
    high: float


def target_logprobs(logits_NV: Tensor, ids_N: Tensor, temperature: float) -> Tensor:
    """fp32 log-probabilities of `ids_N` under softmax(logits / temperature)."""
    scaled_NV = logits_NV.float() / temperature
    return scaled_NV.gather(1, ids_N[:, None]).squeeze(1) - scaled_NV.logsumexp(1)


def cispo(targets: Targets, low: float, high: float) -> Made:
    """The ratio is capped and carries no gradient; its exponent is capped first, so it is finite."""
    ratio_N = (targets.logp_N - targets.recorded_N).detach().clamp(max=log(high)).exp()
    loss = -(targets.weights_N * ratio_N.clamp(min=low) * targets.logp_N).sum()
    return Made(loss, (ratio_N < low) | (targets.logp_N.detach() - targets.recorded_N > log(high)))


def ppo(targets: Targets, low: float, high: float) -> Made:
    """Each token by itself."""
    return _clipped(targets.logp_N - targets.recorded_N, targets.weights_N, low, high)


def gspo(targets: Targets, low: float, high: float) -> Made:
    """Each model call as one: its ratio is the geometric mean of its tokens', its weight the sum of theirs."""
    calls, which_N = targets.calls_N.unique(return_inverse=True)
    nothing = targets.weights_N.new_zeros(len(calls))
    lengths = nothing.index_add(0, which_N, torch.ones_like(targets.weights_N))
    gaps = nothing.index_add(0, which_N, targets.logp_N - targets.recorded_N) / lengths
    made = _clipped(gaps, nothing.index_add(0, which_N, targets.weights_N), low, high)
    return Made(made.loss, made.clipped_N[which_N])


def _clipped(gap: Tensor, weights: Tensor, low: float, high: float) -> Made:
    """min(ratio x weight, bounded ratio x weight), negated and summed."""
    most = torch.where(weights > 0, high, max(DUAL, high))
    least = torch.where(weights > 0, 0.0, low)
    ratio = gap.clamp(max=log(max(DUAL, high))).exp()
    bounded = ratio.clamp(least, most)  # no gradient outside
    return Made(-(weights * bounded).sum(), (gap.detach() > most.log()) | (ratio.detach() < least))


def measured(targets: Targets, clipped_N: Tensor) -> dict[str, float]:
    """Sums over targets: the k3 estimate of KL(recorded || new), how many the bounds cut, the ratios, their squares."""
    gap_N = (targets.logp_N - targets.recorded_N).detach().double()
    ratio_N = gap_N.clamp(max=_FINITE).exp()
    return {
        "mismatch_kl": float((ratio_N - 1 - gap_N).sum()),
        "clipped": float(clipped_N.sum()),
        "ratio": float(ratio_N.sum()),
        "ratio_squared": float(ratio_N.square().sum()),
    }


def beside(logits_NV: Tensor, reference_NV: Tensor | None, temperature: float) -> tuple[Tensor, Tensor]:
    """(KL(policy || reference), entropy of the policy), each N, with a gradient; the first 0 without a reference.

    Both are of the distributions that are sampled, softmax(logits / temperature), over the whole vocabulary. A sampled
    estimate in a loss would not do: the gradient of k3 is that of the opposite divergence.
    """
    divergences: list[Tensor] = []
    entropies: list[Tensor] = []
    for start in range(0, len(logits_NV), 256):  # bounds the copies of a large vocabulary
        logp = (logits_NV[start : start + 256].float() / temperature).log_softmax(1)
        p = logp.exp()
        entropies.append(-(p * logp).sum(1))
        if reference_NV is not None:
            other = (reference_NV[start : start + 256].float() / temperature).log_softmax(1)
            divergences.append((p * (logp - other)).sum(1))
    entropy_N = torch.cat(entropies)
    return torch.cat(divergences) if divergences else torch.zeros_like(entropy_N), entropy_N


@torch.no_grad()
def entropy(logits_NV: Tensor, temperature: float) -> float:
    """Sum over targets of the entropy (nats) of softmax(logits / temperature)."""
    total = 0.0
    for rows in logits_NV.split(256):  # bounds the copies of a large vocabulary
        logp = (rows.float() / temperature).log_softmax(1)
        total -= float((logp.exp() * logp).sum())
    return total


LOSSES = {
    "cispo": Loss(cispo, 0.0, 5.0),
    "ppo": Loss(ppo, 0.8, 1.28),
    "gspo": Loss(gspo, 1 - 3e-4, 1 + 4e-4),
}
"""Name in the configuration -> formula and bounds."""
