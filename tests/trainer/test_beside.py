"""Loss terms beside the advantage's: divergence from the first weights, and entropy, exact for every split."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from trainer_cases import distance, gradient_of, joined, random_tree, sequence

from qwengyre.trainer import torch as torch_trainer
from qwengyre.trainer.lora import Lora
from qwengyre.trainer.loss import beside
from qwengyre.trainer.torch import TorchTrainer
from qwengyre.trajectory.pack import split
from qwengyre.trajectory.runs import flattened
from qwengyre.types import MicroStep


def shared(micro_step: MicroStep, share: float = 0.02) -> MicroStep:
    shares = np.where(micro_step.weights != 0, np.float32(share), np.float32(0))
    return replace(micro_step, shares=shares)


def without_advantage(micro_step: MicroStep) -> MicroStep:
    return replace(shared(micro_step), weights=np.zeros_like(micro_step.weights))


def parts(rng) -> list[MicroStep]:
    return [
        replace(shared(sequence(rng, n, n // 2, w), abs(w) + 0.01), name=str(n))
        for n, w in ((9, 0.1), (14, -0.2), (6, 0.1))
    ]


def whole(several: list[MicroStep]) -> MicroStep:
    return replace(joined("x", several), shares=np.concatenate([part.shares for part in several]))


def moved(model) -> None:
    """As after some steps."""
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))


@pytest.fixture
def trainer(model):
    made = TorchTrainer(model, kl=0.7, entropy=0.3)
    moved(model)
    return made


def test_the_gradient_is_that_of_the_formula(model, rng):
    """Whole sequences, all logits, double precision: written down again from the definition."""
    first, step = copy.deepcopy(model), whole(parts(rng))
    trainer = TorchTrainer(model, kl=0.7, entropy=0.3)
    moved(model)
    found = gradient_of(trainer, [step]) - gradient_of(TorchTrainer(model), [replace(step, shares=None)])
    start = 0
    for length in step.lengths:
        ids = torch.from_numpy(step.ids[start : start + length].astype(np.int64))[None]
        now = (model(input_ids=ids).logits[0].double() / step.temperature).softmax(1)
        then = (first(input_ids=ids).logits[0].double() / step.temperature).softmax(1).detach()
        for t in range(1, length):
            kl, entropy = (now[t - 1] * (now[t - 1] / then[t - 1]).log()).sum(), -(now[t - 1] * now[t - 1].log()).sum()
            (float(step.shares[start + t]) * (0.7 * kl - 0.3 * entropy)).backward(retain_graph=True)
        start += length
    expected = torch.cat([p.grad.double().flatten() for _, p in sorted(model.named_parameters()) if p.grad is not None])
    assert expected.norm() > 0
    assert distance(found, expected) < 1e-4  # a difference of two fp32 gradients


def test_members_without_an_advantage_are_held_too(trainer, model, rng):
    still = without_advantage(whole(parts(rng)))
    assert gradient_of(trainer, [still]).norm() > 0
    sums = trainer.accumulate(still)
    assert sums["targets"] == np.count_nonzero(still.shares) > 0
    assert sums["reference_kl"] > 0
    trainer.sleep()


def test_nothing_pulls_at_the_first_weights(model, rng):
    still = without_advantage(whole(parts(rng)))
    trainer = TorchTrainer(model, kl=0.7)
    assert gradient_of(trainer, [still]).norm() < 1e-6
    assert gradient_of(TorchTrainer(model, entropy=0.3), [still]).norm() > 1e-4


def test_a_step_against_the_gradient_leads_back(trainer, rng):
    still = without_advantage(whole(parts(rng)))
    before = trainer.accumulate(still)["reference_kl"]
    trainer._entropy = 0.0
    trainer.sleep()
    for _ in range(5):
        trainer.accumulate(still)
        trainer.optimizer_step(1.0, 1e-3)
    assert trainer.accumulate(still)["reference_kl"] < 0.9 * before
    trainer.sleep()


def test_order_split_and_packing_do_not_matter(trainer, model, rng, monkeypatch):
    several = parts(rng)
    expected = gradient_of(trainer, several)
    assert distance(gradient_of(trainer, several[::-1]), expected) < 1e-6
    assert distance(gradient_of(trainer, [whole(several)]), expected) < 1e-5
    tree = shared(random_tree(rng, 8, 14))
    tree = replace(tree, weights=np.where(rng.random(tree.tokens) < 0.5, tree.weights, np.float32(0)))
    expected = gradient_of(trainer, [flattened(tree)])
    with monkeypatch.context() as only_here:
        only_here.setattr(torch_trainer, "flattened", None)  # the tree is run as a tree
        assert distance(gradient_of(trainer, [tree]), expected) < 1e-5
        head, rest = split(tree, tree.tokens // 2)
        assert distance(gradient_of(trainer, [rest, head]), expected) < 1e-5


def test_with_adapters_the_reference_is_the_model_without_them(model, rng):
    base = copy.deepcopy(model)
    trainer = TorchTrainer(model, lora=Lora(4, 8.0), kl=0.7)
    step = whole(parts(rng))
    assert trainer._reference is model  # no copy
    with torch.no_grad():
        for parameter in trainer.parameters().values():
            parameter.add_(0.1 * torch.randn_like(parameter))
    found = gradient_of(trainer, [step])
    assert all(parameter.requires_grad for parameter in trainer.parameters().values())
    trainer._adapters, trainer._reference = None, base.requires_grad_(False)
    assert distance(found, gradient_of(trainer, [step])) < 1e-6


def test_over_the_whole_vocabulary_in_slices_and_finite():
    torch.manual_seed(0)
    logits, other = torch.randn(600, 11) * 3, torch.randn(600, 11) * 3
    logits[0, 0], other[0, 1] = 300.0, 300.0
    logits.requires_grad_()
    kl_N, entropy_N = beside(logits, other, 0.7)
    p, q = (logits / 0.7).softmax(1), (other / 0.7).softmax(1)
    assert torch.allclose(kl_N[1:], torch.nn.functional.kl_div(q.log(), p, reduction="none").sum(1)[1:], atol=1e-4)
    assert torch.allclose(entropy_N[1:], torch.distributions.Categorical(p[1:]).entropy(), atol=1e-4)
    (kl_N - entropy_N).sum().backward()
    assert logits.grad.isfinite().all()
