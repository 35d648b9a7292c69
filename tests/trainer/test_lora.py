"""Adapters: only they train, whatever the split; what they are saved as opens elsewhere."""

import json
import sys

import numpy as np
import pytest
import torch
from trainer_cases import distance, gradient_of, joined, sequence
from transformers import AutoModelForCausalLM

from qwengyre.errors import ConfigError, MachineError
from qwengyre.model.load import causal_lm, eos_ids, resolve, tokenizer, window
from qwengyre.trainer.lora import Lora, check
from qwengyre.trainer.torch import TorchTrainer

LORA = Lora(rank=4, alpha=8.0, seed=3)
IDS = torch.arange(3, 60)[None]


@pytest.fixture
def trained(folder):
    """A trainer after two steps, so that no adapter is 0, and its model."""
    model = causal_lm(folder)
    trainer = TorchTrainer(model, lora=LORA, source=folder)
    for seed in (1, 2):
        step(trainer, seed)
    return trainer, model


def step(trainer: TorchTrainer, seed: int) -> None:
    trainer.accumulate(sequence(np.random.default_rng(seed), 40, 9, 0.1))
    trainer.optimizer_step(1.0, 1e-2)


@torch.no_grad()
def logits(model) -> torch.Tensor:
    return model(input_ids=IDS).logits


def test_a_run_begins_with_the_model_as_it_is(folder):
    model = causal_lm(folder)
    before = logits(model)
    TorchTrainer(model, lora=LORA)
    assert torch.equal(logits(model), before)


def test_only_adapters_train_and_all_linear_layers_have_them(folder):
    model = causal_lm(folder)
    frozen = {name: p.detach().clone() for name, p in model.named_parameters()}
    trainer = TorchTrainer(model, lora=LORA)
    step(trainer, 1)
    step(trainer, 2)
    layers, kinds = model.config.num_hidden_layers, 7
    assert len(trainer.parameters()) == layers * kinds * 2
    assert all(".lora_" in name for name in trainer.parameters())
    assert all(name.endswith(("lora_A.default.weight", "lora_B.default.weight")) for name in trainer.gradient())
    assert sum(p.numel() for p in trainer.parameters().values()) < sum(p.numel() for p in frozen.values()) / 5
    kept = {name.replace(".base_layer", ""): p for name, p in model.named_parameters() if ".lora_" not in name}
    assert kept.keys() == frozen.keys()
    assert all(torch.equal(p, frozen[name]) for name, p in kept.items())
    assert all(p.detach().any() for p in trainer.parameters().values())


def test_targets_can_be_named(folder):
    trainer = TorchTrainer(causal_lm(folder), lora=Lora(2, 4.0, ("q_proj", "v_proj")))
    assert {name.split(".lora_")[0].rpartition(".")[2] for name in trainer.parameters()} == {"q_proj", "v_proj"}
    with pytest.raises(ConfigError, match=r"trainer.lora_targets=\['nope'\]"):
        TorchTrainer(causal_lm(folder), lora=Lora(2, 4.0, ("nope",)))


def test_the_gradient_is_the_same_for_every_split_and_order(trained, rng):
    trainer, _ = trained
    parts = [sequence(rng, n, 7, weight) for n, weight in ((50, 0.1), (33, -0.2), (61, 0.05), (20, 0.3))]
    whole = gradient_of(trainer, parts)
    assert distance(gradient_of(trainer, parts[::-1]), whole) < 1e-6
    assert distance(gradient_of(trainer, [joined("all", parts)]), whole) < 1e-5
    assert distance(gradient_of(trainer, parts[:2]) + gradient_of(trainer, parts[2:]), whole) < 1e-6


def test_every_cell_begins_with_the_same_adapters(folder):
    torch.manual_seed(1)
    one = TorchTrainer(causal_lm(folder), lora=LORA)
    torch.manual_seed(2)
    drawn = torch.rand(3)
    torch.manual_seed(2)
    other = TorchTrainer(causal_lm(folder), lora=LORA)
    assert torch.equal(torch.rand(3), drawn)
    assert all(torch.equal(p, other.parameters()[name]) for name, p in one.parameters().items())


def test_a_checkpoint_is_an_adapter_folder(trained, folder, tmp_path):
    trainer, model = trained
    trainer.save(tmp_path)
    said = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (said["peft_type"], said["r"], said["lora_alpha"]) == ("LORA", 4, 8.0)
    assert said["base_model_name_or_path"] == str(folder)
    assert set(said["target_modules"]) == {f"{n}_proj" for n in ("q", "k", "v", "o", "gate", "up", "down")}
    assert not (tmp_path / "model.safetensors").exists()
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(tmp_path)), logits(model))
    assert tokenizer(tmp_path).chat_template == tokenizer(folder).chat_template


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_peft_opens_a_checkpoint(trained, folder, tmp_path):
    from peft import PeftModel

    trainer, model = trained
    trainer.save(tmp_path)
    assert torch.equal(logits(PeftModel.from_pretrained(causal_lm(folder), tmp_path)), logits(model))


def test_a_checkpoint_is_a_model_to_start_from(trained, folder, tmp_path):
    trainer, model = trained
    trainer.save(tmp_path)
    assert resolve(str(tmp_path)) == tmp_path
    assert (window(tmp_path), eos_ids(tmp_path)) == (window(folder), eos_ids(folder))
    merged = causal_lm(tmp_path)
    assert {name for name, _ in merged.named_parameters()} == {n for n, _ in causal_lm(folder).named_parameters()}
    assert float((logits(merged) - logits(model)).abs().max()) < 1e-5
    with pytest.raises(ConfigError, match="is an adapter itself"):
        check(LORA, tmp_path)
    check(Lora(0, 8.0), tmp_path)


def test_an_adapter_without_its_base_says_so(trained, tmp_path):
    trained[0].save(tmp_path)
    place = tmp_path / "adapter_config.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | {"base_model_name_or_path": "/nowhere"}))
    with pytest.raises(ConfigError, match="is an adapter of /nowhere, which is not here"):
        resolve(str(tmp_path))


def test_a_checkpoint_of_another_rank_is_refused_whole(trained, folder, tmp_path):
    trained[0].save(tmp_path)
    other = TorchTrainer(causal_lm(folder), lora=Lora(8, 8.0))
    before = {name: p.detach().clone() for name, p in other.parameters().items()}
    with pytest.raises(MachineError, match="does not fit this model"):
        other.load(tmp_path)
    assert all(torch.equal(p, before[name]) for name, p in other.parameters().items())


def test_without_peft_it_says_what_to_install(folder, monkeypatch):
    monkeypatch.setattr("qwengyre.trainer.lora.find_spec", lambda name: None)
    with pytest.raises(MachineError, match=r"pip install 'qwengyre\[lora\]'"):
        check(LORA, folder)


def test_full_training_needs_no_peft(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    TorchTrainer(causal_lm(folder), lora=Lora(0, 8.0))
    check(Lora(0, 8.0), folder)
