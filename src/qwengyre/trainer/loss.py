"""The loss, in one visible formula, over the weighted targets of a micro-step. N targets, vocabulary V.

    loss = - sum over targets of  weight * sg(min(ratio, 5)) * logp        (cispo)
    ratio = exp(logp - recorded)

`logp` is the log-probability under the distribution that was sampled: fp32 log-softmax of logits / temperature.
Only targets come here, so nothing masked can form 0 x inf. The weight holds advantage and normalisation.
"""

from math import log

import torch
from torch import Tensor

RATIO_CAP = 5.0


def target_logprobs(logits_NV: Tensor, ids_N: Tensor, temperature: float) -> Tensor:
    """fp32 log-probabilities of `ids_N` under softmax(logits / temperature)."""
    scaled_NV = logits_NV.float() / temperature
    return scaled_NV.gather(1, ids_N[:, None]).squeeze(1) - scaled_NV.logsumexp(1)


def cispo(logp_N: Tensor, recorded_N: Tensor, weights_N: Tensor) -> Tensor:
    """The scalar loss. The ratio is capped and carries no gradient; its exponent is capped first, so it is finite."""
    ratio_N = (logp_N - recorded_N).detach().clamp(max=log(RATIO_CAP)).exp()
    return -(weights_N * ratio_N * logp_N).sum()


def mismatch(logp_N: Tensor, recorded_N: Tensor) -> dict[str, float]:
    """Sums over targets: the k3 estimate of KL(recorded || new) and how many ratios the cap cut."""
    gap_N = (logp_N - recorded_N).detach().double()
    return {"mismatch_kl": float((gap_N.exp() - 1 - gap_N).sum()), "clipped": float((gap_N > log(RATIO_CAP)).sum())}


@torch.no_grad()
def entropy(logits_NV: Tensor, temperature: float) -> float:
    """Sum over targets of the entropy (nats) of softmax(logits / temperature)."""
    total = 0.0
    for rows in logits_NV.split(256):  # bounds the copies of a large vocabulary
        logp = (rows.float() / temperature).log_softmax(1)
        total -= float((logp.exp() * logp).sum())
    return total


LOSSES = {"cispo": cispo}
"""Name in the configuration -> loss over (logp, recorded, weights)."""
