"""What every trainer must do, ours and a user's.

Yours: QWENGYRE_TRAINER=package.module:Class pytest tests/contract/test_trainer.py
It is called as in a run: Class(model, loss=..., weight_decay=..., clip_norm=..., optimizer=..., source=...).
"""

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from qwengyre.model.load import causal_lm, resolve
from qwengyre.trainer.base import Trainer
from qwengyre.trainer.lora import Lora
from qwengyre.types import MicroStep

OURS = "qwengyre.trainer.torch:TorchTrainer"
ADAPTERS = "with adapters"
NAMES = [OURS, ADAPTERS, *filter(None, [os.environ.get("QWENGYRE_TRAINER")])]
SUMS = {"tokens", "targets", "loss", "mismatch_kl", "clipped", "entropy"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return resolve("tiny", cache=tmp_path_factory.mktemp("cache"))


@pytest.fixture(params=NAMES)
def make(request: pytest.FixtureRequest, folder: Path) -> Callable[..., tuple[Trainer, Any]]:
    lora = {"lora": Lora(rank=4, alpha=8.0)} if request.param == ADAPTERS else {}
    module, _, name = (OURS if lora else request.param).partition(":")
    kind = getattr(import_module(module), name)

    def made(*, optimizer: bool = True) -> tuple[Trainer, Any]:
        model = causal_lm(folder)
        args = {"loss": "cispo", "weight_decay": 0.0, "clip_norm": 1.0, "optimizer": optimizer, "source": folder}
        trainer = kind(model, **args, **lora)
        trainer.wake()
        return trainer, model

    return made


def micro_step(seed: int, lengths: tuple[int, ...], weight: float = 0.1) -> MicroStep:
    rng = np.random.default_rng(seed)
    weights = [np.where(np.arange(length) < 5, 0, weight) for length in lengths]
    total = sum(lengths)
    return MicroStep(
        name=f"g0.{seed}",
        group=0,
        ids=rng.integers(0, 256, total).astype(np.int32),
        lengths=lengths,
        weights=np.concatenate(weights).astype(np.float32),
        logprobs=np.full(total, -5.5, np.float32),
        temperature=0.8,
    )


def flat(trainer: Trainer) -> torch.Tensor:
    return torch.cat([g.double().flatten() for _, g in sorted(trainer.gradient().items())])


def parameters(model: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).clone()


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


def test_sums_add_up_over_micro_steps(make):
    trainer, _ = make()
    found = [trainer.accumulate(micro_step(seed, (20, 9))) for seed in range(2)]
    assert all(set(sums) >= SUMS for sums in found)
    assert all(type(value) is float for sums in found for value in sums.values())
    assert sum(s["tokens"] for s in found) == 58
    assert sum(s["targets"] for s in found) == 38


def test_the_gradient_adds_in_any_order_and_is_kept_until_the_step(make):
    a, b = micro_step(1, (30,), 0.1), micro_step(2, (20, 12), -0.2)
    one, _ = make()
    other, _ = make()
    for step in (a, b):
        one.accumulate(step)
    for step in (b, a):
        other.accumulate(step)
    assert distance(flat(other), flat(one)) < 1e-6
    kept = flat(one)
    assert torch.equal(flat(one), kept)
    one.optimizer_step(1.0, 1e-3)
    assert not flat(one).any()


def test_a_gradient_starts_at_zero_under_the_models_names(make):
    trainer, model = make()
    assert not flat(trainer).any()
    assert {name: tuple(g.shape) for name, g in trainer.gradient().items()} == {
        name: tuple(p.shape) for name, p in model.named_parameters() if p.requires_grad
    }


def test_scale_is_applied_once_and_learning_rate_counts(make):
    norms, moved = [], []
    for scale, rate in ((1.0, 1e-3), (0.25, 1e-3), (1.0, 1e-4)):
        trainer, model = make()
        before = parameters(model)
        trainer.accumulate(micro_step(1, (30,)))
        norms.append(trainer.optimizer_step(scale, rate)["grad_norm"])
        moved.append(float((parameters(model) - before).norm()))
    assert norms == pytest.approx([norms[0], norms[0] / 4, norms[0]], rel=1e-5)
    assert moved[2] == pytest.approx(moved[0] / 10, rel=1e-2)


def test_nothing_to_train_moves_nothing(make):
    trainer, model = make()
    before = parameters(model)
    trainer.accumulate(micro_step(1, (30,), 0.0))
    assert trainer.optimizer_step(1.0, 1e-2)["grad_norm"] == 0
    assert torch.equal(parameters(model), before)


def test_parameters_stay_the_same_objects(make, tmp_path):
    trainer, model = make()
    objects = [(p, p.data_ptr()) for p in model.parameters()]
    trainer.accumulate(micro_step(1, (30,)))
    trainer.optimizer_step(1.0, 1e-3)
    trainer.save(tmp_path)
    trainer.load(tmp_path)
    trainer.sleep()
    trainer.wake()
    assert [(p, p.data_ptr()) for p in model.parameters()] == objects


def test_a_run_continues_from_a_checkpoint_bit_for_bit(make, tmp_path):
    trainer, model = make()
    trainer.accumulate(micro_step(1, (30,)))
    trainer.optimizer_step(1.0, 1e-3)
    trainer.sleep()
    trainer.save(tmp_path)
    resumed, other = make()
    resumed.load(tmp_path)
    for each in (trainer, resumed):
        each.wake()
        each.accumulate(micro_step(2, (30,)))
        each.optimizer_step(1.0, 1e-3)
    assert torch.equal(parameters(other), parameters(model))


def test_a_checkpoint_opens_with_transformers(make, tmp_path):
    trainer, model = make()
    trainer.accumulate(micro_step(1, (30,)))
    trainer.optimizer_step(1.0, 1e-3)
    trainer.save(tmp_path)
    opened = AutoModelForCausalLM.from_pretrained(tmp_path, local_files_only=True)
    assert torch.equal(parameters(opened), parameters(model))


def test_a_satellite_gives_the_same_gradient_without_an_optimizer(make):
    core, _ = make()
    satellite, _ = make(optimizer=False)
    for each in (core, satellite):
        each.accumulate(micro_step(1, (30,)))
    assert torch.equal(flat(satellite), flat(core))


def test_another_gradient_is_added_whole_or_not_at_all(make):
    a, b = micro_step(1, (30,)), micro_step(2, (20, 12), -0.2)
    core, _ = make()
    satellite, _ = make(optimizer=False)
    one, _ = make()
    for step in (a, b):
        one.accumulate(step)
    core.accumulate(a)
    satellite.accumulate(b)
    incomplete = dict(list(satellite.gradient().items())[1:])
    before = flat(core)
    with pytest.raises(KeyError):
        core.add(incomplete)
    assert torch.equal(flat(core), before)
    core.add(satellite.gradient())
    assert distance(flat(core), flat(one)) < 1e-6


def test_parameters_are_the_models_own(make):
    trainer, model = make()
    own = dict(model.named_parameters())
    assert trainer.parameters().keys() == trainer.gradient().keys()
    assert all(parameter is own[name] for name, parameter in trainer.parameters().items())
