"""Adapters are served as they are, never merged: the same numbers as the module that trains them."""

from typing import Any

import numpy as np
import pytest
import torch
from engine_cases import full_logprobs, llama, qwen3
from peft import LoraConfig, inject_adapter_in_model

from qwengyre.engine.calls import Call
from qwengyre.engine.embedded import EmbeddedEngine
from qwengyre.engine.forward import GeneralDecoder, LeanDecoder, choose_decoder, kv_shape, model_digest
from qwengyre.errors import EngineError

LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def adapted(model: Any, scale: float = 0.2, **options: Any) -> Any:
    """`model` with adapters that matter, in place."""
    config = LoraConfig(r=4, lora_alpha=12, target_modules=LINEAR, **options)
    inject_adapter_in_model(config, model)
    torch.manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=scale)
    return model.eval()


def worst(run: Any, model: Any, prompts: list[np.ndarray]) -> float:
    """Largest gap between what the engine recorded and what the module computes."""
    for i, prompt in enumerate(prompts):
        run.submit(str(i), prompt, 12, 1.0, seed=i)
    run.run()
    gaps = [
        torch.from_numpy(run.done[str(i)].logprobs) - full_logprobs(model, prompt, run.done[str(i)].token_ids)
        for i, prompt in enumerate(prompts)
    ]
    return float(torch.cat(gaps).abs().max())


@pytest.fixture
def prompts(rng: np.random.Generator) -> list[np.ndarray]:
    return [rng.integers(0, 263, length) for length in (30, 5, 70)]


@pytest.mark.parametrize("family", [llama, qwen3])
def test_both_decoders_serve_what_is_trained(family, stepped, prompts):
    plain, model = family(), adapted(family())
    assert isinstance(choose_decoder(model, 64), LeanDecoder)
    assert worst(stepped(model), model, prompts) < 1e-4
    general = stepped(model)
    general.batch._decoder = GeneralDecoder(model)
    assert worst(general, model, prompts) < 1e-4
    assert worst(stepped(model), plain, prompts) > 0.1  # the adapters matter


def test_updates_in_place_are_served(stepped, prompts):
    model = adapted(qwen3(), scale=0.0)
    run = stepped(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.2)
    run.batch.reload(1)
    assert worst(run, model, prompts) < 1e-4


def test_keys_and_values_belong_to_a_model_with_the_same_adapters():
    one, other = adapted(qwen3()), adapted(qwen3())
    assert model_digest(one) == model_digest(other)
    assert model_digest(one) != model_digest(qwen3())
    assert kv_shape(one) == kv_shape(qwen3())


def test_adapters_of_another_kind_are_refused():
    with pytest.raises(EngineError, match="plain LoRA"):
        LeanDecoder(adapted(qwen3(), use_dora=True), 64)


async def test_keys_and_values_move_between_equal_versions_only():
    """A prompt computed by one engine is continued by another with the same adapters, and by nobody else."""
    models = [adapted(qwen3()), adapted(qwen3()), qwen3()]
    versions = [3, 3, 3]
    engines = [
        EmbeddedEngine(model, name=f"e{i}", eos_ids=[], window=256, version=version)
        for i, (model, version) in enumerate(zip(models, versions, strict=True))
    ]
    prompt = np.random.default_rng(3).integers(3, 263, 120).astype(np.int32)
    try:
        for engine in engines:
            await engine.start()
            await engine.open()
        first = await engines[0].generate(Call("first", prompt, 8, 1.0, seed=1, handle="0-0"))
        blocks = await engines[0].export_kv(["0-0"])
        assert await engines[1].import_kv(blocks, ["0-0"]) == sum(block.tokens for block in blocks)
        longer = np.concatenate([prompt, first.token_ids])
        second = await engines[1].generate(Call("second", longer, 8, 1.0, seed=2, handle="0-0"))
        assert (await engines[1].stats())["reused_tokens"] > 100
        wanted = full_logprobs(models[0], longer, second.token_ids)
        assert float((torch.from_numpy(second.logprobs) - wanted).abs().max()) < 1e-4
        with pytest.raises(EngineError):
            await engines[2].import_kv(blocks, ["0-0"])
        await engines[1].load(4)
        with pytest.raises(EngineError):
            await engines[1].import_kv(blocks, ["0-0"])
    finally:
        for engine in engines:
            await engine.stop()
