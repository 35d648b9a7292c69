"""Both decoders reproduce the module; what neither reproduces is refused with a sentence."""

import pytest
import torch
import transformers as hf

from qwengyre.engine.forward import GeneralDecoder, LeanDecoder, choose_decoder
from qwengyre.errors import EngineError

SMALL = {
    "vocab_size": 101,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 256,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 10000.0}


def build(family: str, **options):
    torch.manual_seed(3)
    return getattr(hf, f"{family}ForCausalLM")(getattr(hf, f"{family}Config")(**SMALL, **options))


@pytest.mark.parametrize(
    ("family", "options", "kind"),
    [
        ("Llama", {"attention_bias": True, "mlp_bias": True}, LeanDecoder),
        ("Llama", {"rope_parameters": YARN}, LeanDecoder),
        ("Llama", {"tie_word_embeddings": True}, LeanDecoder),
        ("Qwen2", {}, LeanDecoder),
        ("Qwen3", {"head_dim": 16}, LeanDecoder),
        ("Mistral", {"sliding_window": None}, LeanDecoder),
        ("Granite", {"logits_scaling": 1.0}, GeneralDecoder),
        ("SmolLM3", {"pad_token_id": 0}, GeneralDecoder),
        ("Olmo2", {}, GeneralDecoder),
    ],
)
def test_a_family_is_reproduced(family, options, kind, stepped, reference, rng):
    model = build(family, **options)
    assert isinstance(choose_decoder(model, 64), kind)
    run = stepped(model, window=64)
    for i, length in enumerate((20, 7, 20)):
        prompt = rng.integers(0, 101, length)
        run.submit(str(i), prompt, 10, 1.0, seed=i)
        run.run()
        got = run.done[str(i)]
        want = reference(model.eval(), prompt, got.token_ids)
        assert float((torch.from_numpy(got.logprobs) - want).abs().max()) < 1e-4


def test_the_general_decoder_agrees_with_the_lean_one(one_model, stepped, rng):
    prompts = [rng.integers(0, 263, length) for length in (30, 5, 70)]
    lean, general = stepped(one_model), stepped(one_model)
    general.batch._decoder = GeneralDecoder(one_model)
    for run in (lean, general):
        for i, prompt in enumerate(prompts):
            run.submit(str(i), prompt, 12, 1.0, seed=i)
        run.run()
    for name, want in lean.done.items():
        assert general.done[name].token_ids.tolist() == want.token_ids.tolist()


def test_the_twin_shares_parameters_and_leaves_the_model_alone(one_model):
    before = one_model.config._attn_implementation
    one_model.train()
    general = GeneralDecoder(one_model)
    twin = dict(general._twin.named_parameters())
    assert all(twin[name] is parameter for name, parameter in one_model.named_parameters())
    assert one_model.config._attn_implementation == before
    assert one_model.training
    assert not general._twin.training


def test_choosing_keeps_the_training_mode(one_model):
    one_model.train()
    choose_decoder(one_model, 64)
    assert one_model.training


def test_sliding_attention_shorter_than_the_window_is_refused():
    with pytest.raises(EngineError, match="Lower the window to 16"):
        choose_decoder(build("Mistral", sliding_window=16), 64)
    choose_decoder(build("Mistral", sliding_window=64), 64)


def test_a_model_that_is_not_reproduced_is_refused():
    model = build("Granite", logits_scaling=2.0)
    with pytest.raises(EngineError, match="does not reproduce"):
        choose_decoder(model, 64)
