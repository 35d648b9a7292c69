import pytest
from transformers import AutoConfig

from qwengyre.trainer.shape import UNLIMITED, tree_depth

DEPTHS = {
    "llama": UNLIMITED,
    "qwen2": UNLIMITED,
    "qwen3": UNLIMITED,
    "qwen3_moe": UNLIMITED,
    "gpt_neox": UNLIMITED,
    "gpt2": UNLIMITED,
    "gemma3_text": 4096,
    "mistral": 4096,
    "gpt_oss": 128,
    "llama4_text": 8192,
    "mamba": 0,
    "mamba2": 0,
    "jamba": 0,
    "bamba": 0,
    "falcon_h1": 0,
    "zamba2": 0,
    "rwkv": 0,
    "recurrent_gemma": 0,
    "qwen3_next": 0,
    "qwen3_5_text": 0,
    "lfm2": 0,
    "bloom": 0,
    "mpt": 0,
}


@pytest.mark.parametrize("name", DEPTHS)
def test_depth_of_a_family(name: str):
    assert tree_depth(AutoConfig.for_model(name).to_dict()) == DEPTHS[name]


def test_a_file_without_layer_types():
    assert tree_depth({"model_type": "mistral", "sliding_window": 512}) == 512
    assert tree_depth({"model_type": "qwen2", "sliding_window": 512, "use_sliding_window": False}) == UNLIMITED
    assert tree_depth({"text_config": {"layer_types": ["linear_attention"]}}) == 0
    assert tree_depth({"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64}) == 64
