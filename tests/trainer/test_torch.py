import copy

import numpy as np
import pytest
import torch
from trainer_cases import RECORDED, gradient_of, joined, sequence
from transformers import DynamicCache

from qwengyre.errors import MachineError, RunError
from qwengyre.trainer.torch import TorchTrainer
from qwengyre.types import MicroStep


def weights_of(model) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a | b)


def test_recorded_and_recomputed_logprobs_agree(model, rng):
    """What an engine records one token at a time, with a cache, is what the trainer computes in one pass."""
    trainer, temperature = TorchTrainer(model), 0.8
    lengths, ids, recorded = (40, 57), [], []
    for length in lengths:
        own, cache = [int(rng.integers(0, 256))], DynamicCache(config=model.config)
        logprobs = [0.0]
        while len(own) < length:
            with torch.no_grad():
                out = model(input_ids=torch.tensor([own[-1:]]), cache=cache, use_cache=True)
            logp = torch.log_softmax(out.logits[0, -1].float() / temperature, 0)
            own.append(int(rng.choice(len(logp), p=np.asarray(logp.double().exp() / logp.double().exp().sum()))))
            logprobs.append(float(logp[own[-1]]))
        ids += own
        recorded += logprobs
    found = trainer.logprobs(np.array(ids, np.int32), lengths, temperature)
    assert found.dtype == np.float32
    assert found == pytest.approx(np.array(recorded), abs=1e-4)
    assert trainer.logprobs(np.array(ids, np.int32), lengths, 1.6) != pytest.approx(np.array(recorded), abs=1e-3)


def test_sums_are_over_targets(model, rng):
    trainer, one, two = TorchTrainer(model), sequence(rng, 30, 5, 0.1), sequence(rng, 50, 7, -0.2)
    found = trainer.accumulate(joined("both", [one, two]))
    assert (found["tokens"], found["targets"]) == (80, 12)
    new = trainer.logprobs(joined("both", [one, two]).ids, (30, 50), 0.8)
    at = joined("both", [one, two]).weights != 0
    weights, recorded = joined("both", [one, two]).weights[at], joined("both", [one, two]).logprobs[at]
    ratio = np.exp(new[at] - recorded)
    assert found["loss"] == pytest.approx(-(weights * np.minimum(ratio, 5) * new[at]).sum(), rel=1e-4)
    assert found["mismatch_kl"] == pytest.approx((ratio - 1 - np.log(ratio)).sum(), rel=1e-3)
    assert found["entropy"] == pytest.approx(12 * np.log(259), rel=0.02)
    assert found["clipped"] == 0


def test_a_micro_step_without_weights_costs_and_adds_nothing(model, rng):
    trainer, quiet = TorchTrainer(model), sequence(rng, 30, 5, 0.0)
    bad = MicroStep("q", 0, quiet.ids, quiet.lengths, quiet.weights, np.full(30, -np.inf, np.float32), 0.8)
    assert trainer.accumulate(bad) == {
        "tokens": 30.0,
        "targets": 0.0,
        "loss": 0.0,
        "mismatch_kl": 0.0,
        "clipped": 0.0,
        "ratio": 0.0,
        "ratio_squared": 0.0,
        "entropy": 0.0,
    }
    assert not gradient_of(trainer, [bad]).any()


def test_masked_positions_never_reach_the_loss(model, rng):
    trainer, step = TorchTrainer(model), sequence(rng, 30, 5, 0.1)
    poisoned = step.logprobs.copy()
    poisoned[:25] = -np.inf
    bad = MicroStep("q", 0, step.ids, step.lengths, step.weights, poisoned, 0.8)
    assert torch.equal(gradient_of(trainer, [bad]), gradient_of(trainer, [step]))


def test_the_step_updates_the_engines_own_tensors(model, rng):
    before, objects = weights_of(model), [(p, p.data_ptr()) for p in model.parameters()]
    trainer = TorchTrainer(model)
    trainer.accumulate(sequence(rng, 40, 9, 0.1))
    done = trainer.optimizer_step(1.0, 1e-3)
    assert done["stepped"] == 1
    assert not same(before, weights_of(model))
    assert [(p, p.data_ptr()) for p in model.parameters()] == objects
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_the_step_is_adamw_on_the_scaled_and_clipped_gradient(model, rng):
    step, other = sequence(rng, 40, 9, 3.0), copy.deepcopy(model)
    trainer = TorchTrainer(model, weight_decay=0.1, clip_norm=0.01)
    trainer.accumulate(step)
    reference = torch.optim.AdamW(other.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1, foreach=False)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        theirs.grad = mine.grad.clone() / 16
    norm = float(torch.nn.utils.clip_grad_norm_(other.parameters(), 0.01))
    reference.step()
    assert norm > 0.01
    assert trainer.optimizer_step(1 / 16, 2e-3)["grad_norm"] == pytest.approx(norm, rel=1e-5)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-6)


def test_a_step_without_gradient_makes_no_optimizer_call(model, rng):
    trainer, before = TorchTrainer(model, weight_decay=0.5), weights_of(model)
    assert trainer.optimizer_step(1.0, 1e-2) == {"grad_norm": 0.0, "stepped": 0.0}
    trainer.gradient()  # zeros
    assert trainer.optimizer_step(1.0, 1e-2) == {"grad_norm": 0.0, "stepped": 0.0}
    assert same(before, weights_of(model))
    assert not trainer._optimizer.state


def test_a_gradient_that_is_not_finite_is_refused(model, rng):
    trainer, before = TorchTrainer(model), weights_of(model)
    trainer.accumulate(sequence(rng, 40, 9, float("inf")))
    with pytest.raises(RunError, match=r"norm is (nan|inf)"):
        trainer.optimizer_step(1.0, 1e-2)
    assert same(before, weights_of(model))


def test_a_satellite_has_no_optimizer(model, rng):
    trainer = TorchTrainer(model, optimizer=False)
    trainer.accumulate(sequence(rng, 40, 9, 0.1))
    with pytest.raises(AssertionError):
        trainer.optimizer_step(1.0, 1e-2)


def test_other_precisions_are_refused(model):
    with pytest.raises(AssertionError, match="fp32"):
        TorchTrainer(model.bfloat16())


def test_a_checkpoint_of_another_model_is_one_line(model, tmp_path):
    trainer = TorchTrainer(model)
    with pytest.raises(MachineError, match="does not fit"):
        trainer.load(tmp_path)
    trainer.save(tmp_path)
    (tmp_path / "trainer_state.pt").unlink()
    with pytest.raises(MachineError, match="does not fit"):
        trainer.load(tmp_path)


def test_recorded_constant_is_near_the_models(model, rng):
    assert TorchTrainer(model).logprobs(rng.integers(0, 256, 50).astype(np.int32), (50,), 0.8)[1:].mean() == (
        pytest.approx(RECORDED, abs=0.4)
    )
