import math

import pytest
import torch

from qwengyre.trainer.loss import cispo, entropy, mismatch, target_logprobs


def test_cispo_is_the_formula():
    logp = torch.tensor([-1.0, -2.0, -0.5], requires_grad=True)
    recorded = torch.tensor([-1.5, -1.0, -4.0])  # ratios e^.5, e^-1, and e^3.5 > 5
    weights = torch.tensor([0.5, -0.25, 0.1])
    loss = cispo(logp, recorded, weights)
    capped = [math.exp(0.5), math.exp(-1), 5.0]
    assert loss.item() == pytest.approx(-(0.5 * capped[0] * -1 - 0.25 * capped[1] * -2 + 0.1 * capped[2] * -0.5))
    loss.backward()  # the ratio carries no gradient
    assert logp.grad.tolist() == pytest.approx([-0.5 * capped[0], 0.25 * capped[1], -0.1 * capped[2]])


def test_a_ratio_beyond_fp32_stays_finite():
    logp = torch.tensor([-0.1], requires_grad=True)
    cispo(logp, torch.tensor([-500.0]), torch.tensor([1.0])).backward()
    assert logp.grad.tolist() == pytest.approx([-5.0])


def test_logprobs_are_of_the_tempered_distribution_in_fp32():
    logits = torch.tensor([[1.0, 3.0, -2.0], [0.0, 0.0, 0.0]])
    ids = torch.tensor([1, 2])
    expected = torch.log_softmax(logits.double() / 0.7, 1)[[0, 1], ids]
    assert target_logprobs(logits, ids, 0.7).tolist() == pytest.approx(expected.tolist(), abs=1e-6)
    assert target_logprobs(logits.bfloat16(), ids, 0.7).dtype == torch.float32


def test_mismatch_and_entropy():
    measured = mismatch(torch.tensor([-1.0, -2.0]), torch.tensor([-1.0, -4.0]))
    assert measured["mismatch_kl"] == pytest.approx(math.exp(2) - 1 - 2)
    assert measured["clipped"] == 1
    assert entropy(torch.zeros(600, 8), 0.5) == pytest.approx(600 * math.log(8), rel=1e-5)
