"""Tiny random models, equal at every call, and the truth about their log-probabilities."""

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

SHAPE: dict[str, Any] = {
    "vocab_size": 263,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 1024,
    "initializer_range": 0.2,
}


def llama() -> LlamaForCausalLM:
    torch.manual_seed(1)
    return LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=True)).eval()


def qwen3() -> Qwen3ForCausalLM:
    torch.manual_seed(2)
    return Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=16)).eval()


def full_logprobs(model: Any, prompt: Any, output: Any, temperature: float = 1.0) -> torch.Tensor:
    """Log-probabilities of `output` after `prompt` by one full forward of the module itself."""
    ids = torch.tensor([[*map(int, prompt), *map(int, output)]])
    with torch.inference_mode():
        logits = model(ids, use_cache=False).logits[0].float() / temperature
    table = logits[len(prompt) - 1 : -1].log_softmax(-1)
    return table.gather(1, ids[0, len(prompt) :, None])[:, 0]
