"""A tree has the gradient of its flat rows: for any shape, any decoder, any cut."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from trainer_cases import RECORDED, distance, gradient_of, random_tree
from transformers import (
    BloomConfig,
    Gemma2Config,
    GPT2Config,
    GPTNeoXConfig,
    Lfm2Config,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    PreTrainedModel,
    Qwen3Config,
)
from transformers.models.auto import AutoModelForCausalLM

from qwengyre.trainer import torch as torch_trainer
from qwengyre.trainer.forward import runs_trees
from qwengyre.trainer.torch import TorchTrainer
from qwengyre.trajectory.pack import split
from qwengyre.trajectory.runs import flattened

SIZES = {
    "vocab_size": 259,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 1024,
}
GROUPED = SIZES | {"num_key_value_heads": 2, "head_dim": 16}
TREES = {
    "llama": LlamaConfig(**GROUPED),
    "qwen3": Qwen3Config(**GROUPED, tie_word_embeddings=True),
    "gpt_neox": GPTNeoXConfig(**SIZES),
    "gpt2": GPT2Config(vocab_size=259, n_positions=1024, n_embd=64, n_layer=2, n_head=4),
}
FLAT = {
    "mamba": MambaConfig(vocab_size=259, hidden_size=32, num_hidden_layers=1, state_size=4),
    "convolution": Lfm2Config(**GROUPED, layer_types=["conv", "full_attention"], block_multiple_of=8),
    "alibi": BloomConfig(vocab_size=259, hidden_size=64, n_layer=2, n_head=4),
    "softcap": Gemma2Config(**GROUPED, sliding_window=1024),
}


def made(config) -> PreTrainedModel:
    torch.manual_seed(1)
    return AutoModelForCausalLM.from_config(copy.deepcopy(config)).float().eval()


@pytest.mark.parametrize("name", TREES)
def test_random_trees_have_the_gradient_of_flat_rows(name: str, rng, monkeypatch):
    model = made(TREES[name])
    trainer = TorchTrainer(model)
    for runs, longest in ((1, 30), (4, 12), (9, 40), (12, 6), (3, 330)):
        tree = random_tree(rng, runs, longest)
        expected = gradient_of(trainer, [flattened(tree)])
        with monkeypatch.context() as only_here:
            only_here.setattr(torch_trainer, "flattened", None)  # the tree is run as a tree
            assert distance(gradient_of(trainer, [tree]), expected) < 1e-5


@pytest.mark.parametrize("loss", ["ppo", "gspo"])
def test_other_losses_too(loss: str, model, rng):
    trainer, tree = TorchTrainer(model, loss=loss), random_tree(rng, 8, 20)
    near = replace(tree, logprobs=np.full(tree.tokens, RECORDED, np.float32))
    expected = gradient_of(trainer, [flattened(near)])
    assert expected.norm() > 0
    assert distance(gradient_of(trainer, [near]), expected) < 1e-5
    head, rest = split(near, near.tokens // 2)
    assert distance(gradient_of(trainer, [rest, head]), expected) < 1e-5


def test_any_cut_of_a_tree_has_its_gradient(model, rng):
    trainer = TorchTrainer(model)
    whole = random_tree(rng, 10, 20)
    expected = gradient_of(trainer, [whole])
    for tokens in (1, whole.tokens // 3, whole.tokens // 2):
        parts, rest = [], whole
        while rest is not None:
            head, rest = split(rest, tokens)
            parts.append(head)
        assert len(parts) > 1
        assert distance(gradient_of(trainer, parts[::-1]), expected) < 1e-6


@pytest.mark.parametrize("name", FLAT)
def test_a_model_for_which_a_tree_is_wrong_trains_its_flat_rows(name: str, rng):
    model = made(FLAT[name])
    trainer, tree = TorchTrainer(model), random_tree(rng, 5, 9)
    assert torch.equal(gradient_of(trainer, [tree]), gradient_of(trainer, [flattened(tree)]))
    assert trainer.accumulate(tree)["tokens"] == flattened(tree).tokens


@pytest.mark.parametrize("name", ["convolution", "alibi", "softcap"])
def test_what_the_configuration_does_not_tell_is_found_by_trying(name: str):
    assert not runs_trees(made(FLAT[name]))
    assert runs_trees(made(TREES["llama"]))


def test_a_window_shorter_than_the_sequence_is_trained_flat(rng):
    model = made(MistralConfig(**GROUPED, sliding_window=16))
    trainer = TorchTrainer(model)
    short, long = random_tree(rng, 4, 5), random_tree(rng, 4, 30)
    assert trainer.accumulate(short)["tokens"] == short.tokens
    trainer.sleep()
    assert torch.equal(gradient_of(trainer, [long]), gradient_of(trainer, [flattened(long)]))
    assert distance(gradient_of(trainer, [short]), gradient_of(trainer, [flattened(short)])) < 1e-5


def test_a_tree_leaves_the_models_attention_as_it_was(model, rng):
    before = model.config._attn_implementation
    TorchTrainer(model).accumulate(random_tree(rng, 4, 9))
    assert model.config._attn_implementation == before


def test_a_far_log_prob_where_nothing_is_trained_changes_nothing(model, rng):
    trainer, tree = TorchTrainer(model), random_tree(rng, 6, 20)
    masked = np.where(tree.weights == 0, np.float32(-100), tree.logprobs)
    assert torch.equal(gradient_of(trainer, [replace(tree, logprobs=masked)]), gradient_of(trainer, [tree]))


def test_a_tree_without_weights_is_no_work(model, rng):
    tree = random_tree(rng, 6, 20)
    sums = TorchTrainer(model).accumulate(replace(tree, weights=0 * tree.weights))
    assert (sums["tokens"], sums["targets"]) == (tree.tokens, 0)
