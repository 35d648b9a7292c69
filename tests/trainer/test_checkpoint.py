import subprocess
import sys

import numpy as np
import pytest
import torch
from trainer_cases import sequence
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from qwengyre.model.load import causal_lm, eos_ids, tokenizer, window
from qwengyre.trainer.torch import TorchTrainer


def step(trainer: TorchTrainer, seed: int) -> None:
    rng = np.random.default_rng(seed)
    trainer.accumulate(sequence(rng, 40, 9, 0.1))
    trainer.accumulate(sequence(rng, 30, 9, -0.1))
    trainer.optimizer_step(0.5, 1e-3)


def bits(model) -> dict[str, bytes]:
    return {name: p.detach().numpy().tobytes() for name, p in model.named_parameters()}


def test_step_save_load_step_is_two_steps_bit_for_bit(folder, tmp_path):
    model = causal_lm(folder)
    trainer = TorchTrainer(model, weight_decay=0.01, source=folder)
    step(trainer, 1)
    torch.manual_seed(5)
    torch.rand(3)
    trainer.save(tmp_path)
    expected_draw = torch.rand(4)
    step(trainer, 2)

    fresh = causal_lm(folder)
    objects = [(p, p.data_ptr()) for p in fresh.parameters()]
    resumed = TorchTrainer(fresh, weight_decay=0.01, source=folder)
    resumed.load(tmp_path)
    assert [(p, p.data_ptr()) for p in fresh.parameters()] == objects
    assert fresh.lm_head.weight is fresh.model.embed_tokens.weight
    assert torch.equal(torch.rand(4), expected_draw)
    step(resumed, 2)
    assert bits(fresh) == bits(model)


def test_saving_changes_nothing(folder, tmp_path):
    twin, saved = causal_lm(folder), causal_lm(folder)
    alone, trainer = TorchTrainer(twin), TorchTrainer(saved)
    config, rng_state = saved.config.to_dict(), torch.get_rng_state()
    for number in range(2):
        step(alone, number)
        step(trainer, number)
        trainer.accumulate(sequence(np.random.default_rng(9), 30, 4, 0.1))
        before = {name: g.clone() for name, g in trainer.gradient().items()}
        (tmp_path / str(number)).mkdir()
        trainer.save(tmp_path / str(number))
        assert all(torch.equal(before[name], g) for name, g in trainer.gradient().items())
        trainer.sleep()
    assert bits(saved) == bits(twin)
    assert saved.config.to_dict() == config
    assert all(p.dtype == torch.float32 for p in saved.parameters())
    assert torch.equal(torch.get_rng_state(), rng_state)


def test_from_pretrained_opens_a_checkpoint_alone(folder, tmp_path, model, rng):
    """With transformers only, in a new process, offline."""
    trainer = TorchTrainer(model, source=folder)
    step(trainer, 1)
    trainer.save(tmp_path)
    ids = rng.integers(0, 256, 12).astype(np.int32)
    code = (
        "import sys, torch; from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        "m = AutoModelForCausalLM.from_pretrained(sys.argv[1]); t = AutoTokenizer.from_pretrained(sys.argv[1])\n"
        "assert m.dtype == torch.float32 and m.lm_head.weight is m.model.embed_tokens.weight\n"
        "assert t.apply_chat_template([{'role': 'user', 'content': 'hi'}], tokenize=False).startswith('<|im_start|>')\n"
        "ids = torch.tensor([[int(i) for i in sys.argv[2].split()]])\n"
        "logp = torch.log_softmax(m(input_ids=ids).logits[0, :-1] / 0.8, 1).gather(1, ids[0, 1:, None])[:, 0]\n"
        "print(*logp.tolist())"
    )
    command = [sys.executable, "-c", code, str(tmp_path), " ".join(map(str, ids))]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={"HF_HUB_OFFLINE": "1"})
    opened = np.array(done.stdout.split(), float)
    assert opened == pytest.approx(trainer.logprobs(ids, (12,), 0.8)[1:], abs=1e-5)
    assert window(tmp_path) == window(folder)
    assert eos_ids(tmp_path) == eos_ids(folder)
    assert tokenizer(tmp_path).chat_template == tokenizer(folder).chat_template
    assert AutoTokenizer.from_pretrained(tmp_path).get_vocab() == AutoTokenizer.from_pretrained(folder).get_vocab()


def test_untied_embeddings_survive(tmp_path):
    config = Qwen3Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        tie_word_embeddings=False,
    )
    model, other = Qwen3ForCausalLM(config).eval(), Qwen3ForCausalLM(config).eval()
    TorchTrainer(model).save(tmp_path)
    TorchTrainer(other).load(tmp_path)
    assert bits(other) == bits(model)
    assert bits(AutoModelForCausalLM.from_pretrained(tmp_path, local_files_only=True)) == bits(model)


def test_a_satellite_takes_the_weights_of_a_cores_checkpoint(folder, tmp_path):
    model, satellite = causal_lm(folder), causal_lm(folder)
    core = TorchTrainer(model)
    step(core, 1)
    core.save(tmp_path)
    TorchTrainer(satellite, optimizer=False).load(tmp_path)
    assert bits(satellite) == bits(model)
