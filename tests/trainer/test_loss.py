import math

import pytest
import torch

from qwengyre.trainer.loss import LOSSES, Made, Targets, entropy, measured, target_logprobs


def made(name: str, gaps: torch.Tensor, weights: list[float], calls: list[int] | None = None) -> Made:
    """The loss where `gaps` lie between what the model says and what was recorded (0)."""
    recorded = torch.zeros(len(weights))
    numbers = torch.tensor(calls or range(len(weights)))
    return LOSSES[name].formula(
        Targets(gaps, recorded, torch.tensor(weights), numbers), LOSSES[name].low, LOSSES[name].high
    )


def gradient(name: str, ratios: list[float], weights: list[float], calls: list[int] | None = None) -> list[float]:
    gaps = torch.tensor(ratios).log().requires_grad_()
    made(name, gaps, weights, calls).loss.backward()
    return gaps.grad.tolist()


@pytest.mark.parametrize("name", LOSSES)
def test_at_ratio_one_every_loss_has_the_gradient_of_the_weighted_log_prob(name: str):
    weights = [0.5, 0.5, -0.25, 0.125]
    assert gradient(name, [1.0] * 4, weights, [1, 1, 2, 3]) == pytest.approx([-w for w in weights])


def test_ppo_stops_where_it_would_go_on_outward():
    ratios = [1.1, 1.3, 0.7, 0.9, 1.3, 0.7, 2.9, 3.1]
    weights = [1.0, 1.0, 1.0, -1.0, -1.0, -1.0, -1.0, -1.0]
    expected = [-1.1, 0, -0.7, 0.9, 1.3, 0, 2.9, 0]
    assert gradient("ppo", ratios, weights) == pytest.approx(expected)
    assert made("ppo", torch.tensor(ratios).log(), weights).clipped_N.tolist() == [not g for g in expected]


def test_gspo_takes_a_call_as_one():
    ratios = torch.tensor([1.2, 1 / 1.2, 1.1, 1.0, 0.9])
    calls, weights = [1, 1, 2, 2, 3], [0.5, 0.5, 0.5, 0.5, -0.5]
    found = gradient("gspo", ratios.tolist(), weights, calls)
    assert found == pytest.approx([-0.5, -0.5, 0, 0, 0]), "1.2 and its inverse are a call of ratio 1"
    within = gradient("gspo", [1.0003, 1.0003, 0.9998], [0.5, 0.5, -0.5], [1, 1, 2])
    assert within == pytest.approx([-0.50015, -0.50015, 0.4999], rel=1e-5)
    assert made("gspo", ratios.log(), weights, calls).clipped_N.tolist() == [False, False, True, True, True]


@pytest.mark.parametrize("weight", [1.0, -1.0])
@pytest.mark.parametrize("gap", [-500.0, 500.0])
@pytest.mark.parametrize("name", LOSSES)
def test_no_ratio_makes_anything_infinite(name: str, gap: float, weight: float):
    logp = torch.tensor([gap], requires_grad=True)
    loss = made(name, logp, [weight]).loss
    loss.backward()
    assert math.isfinite(loss.item())
    assert math.isfinite(logp.grad.item())


def test_cispo_is_the_formula():
    logp = torch.tensor([-1.0, -2.0, -0.5], requires_grad=True)
    recorded = torch.tensor([-1.5, -1.0, -4.0])  # ratios e^.5, e^-1, and e^3.5 > 5
    weights = torch.tensor([0.5, -0.25, 0.1])
    loss, clipped = LOSSES["cispo"].formula(Targets(logp, recorded, weights, torch.arange(3)), 0.0, 5.0)
    assert clipped.tolist() == [False, False, True]
    capped = [math.exp(0.5), math.exp(-1), 5.0]
    assert loss.item() == pytest.approx(-(0.5 * capped[0] * -1 - 0.25 * capped[1] * -2 + 0.1 * capped[2] * -0.5))
    loss.backward()  # the ratio carries no gradient
    assert logp.grad.tolist() == pytest.approx([-0.5 * capped[0], 0.25 * capped[1], -0.1 * capped[2]])


def test_a_ratio_beyond_fp32_stays_finite():
    logp = torch.tensor([-0.1], requires_grad=True)
    LOSSES["cispo"].formula(Targets(logp, torch.tensor([-500.0]), torch.ones(1), torch.ones(1)), 0, 5).loss.backward()
    assert logp.grad.tolist() == pytest.approx([-5.0])


def test_logprobs_are_of_the_tempered_distribution_in_fp32():
    logits = torch.tensor([[1.0, 3.0, -2.0], [0.0, 0.0, 0.0]])
    ids = torch.tensor([1, 2])
    expected = torch.log_softmax(logits.double() / 0.7, 1)[[0, 1], ids]
    assert target_logprobs(logits, ids, 0.7).tolist() == pytest.approx(expected.tolist(), abs=1e-6)
    assert target_logprobs(logits.bfloat16(), ids, 0.7).dtype == torch.float32


def test_mismatch_and_entropy():
    targets = Targets(torch.tensor([-1.0, -2.0]), torch.tensor([-1.0, -4.0]), torch.ones(2), torch.ones(2))
    found = measured(targets, torch.tensor([True, False]))
    assert found["mismatch_kl"] == pytest.approx(math.exp(2) - 1 - 2)
    assert found["clipped"] == 1
    assert found["ratio"] == pytest.approx(1 + math.exp(2))
    assert found["ratio_squared"] == pytest.approx(1 + math.exp(4))
    assert entropy(torch.zeros(600, 8), 0.5) == pytest.approx(600 * math.log(8), rel=1e-5)
