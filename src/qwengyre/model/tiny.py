"""Models from scratch for tests: `tiny` (0.1 M parameters, a token a byte, window 4096) and `tiny-long` (0.2 M, about
three bytes a token, window 262,144, so that whole sessions of real harnesses fit). Qwen3, ChatML specials.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
WINDOW = 4096
LONG_WINDOW = 262_144
MERGES = Path(__file__).parent / "tiny_merges.txt"
"""Byte pairs, learned from this project's own text."""


@dataclass(frozen=True)
class Shape:
    """The geometry of a tiny model."""

    layers: int = 2
    hidden: int = 64
    heads: int = 4
    key_heads: int = 2
    window: int = WINDOW


LONG = Shape(layers=1, hidden=32, heads=2, key_heads=2, window=LONG_WINDOW)
"""As little work a token as there can be: its sessions are long and it runs on a laptop's CPU."""


def tiny(folder: Path, *, layers: int = 2, hidden: int = 64, seed: int = 0) -> None:
    """Write the model (grouped-query attention, tied embeddings, seeded weights) into the existing empty `folder`."""
    _write(folder, Shape(layers=layers, hidden=hidden), (), seed)


def tiny_long(folder: Path, *, seed: int = 0) -> None:
    """Write the long-window model into the existing empty `folder`."""
    _write(folder, LONG, MERGES.read_text("utf-8").splitlines(), seed)


def _write(folder: Path, shape: Shape, merges: Sequence[str], seed: int) -> None:
    _write_tokenizer(folder, merges, shape.window)
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    known = 256 + len(merges)
    config = Qwen3Config(
        vocab_size=known + len(SPECIALS),
        hidden_size=shape.hidden,
        intermediate_size=2 * shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        head_dim=shape.hidden // shape.heads,
        max_position_embeddings=shape.window,
        tie_word_embeddings=True,
        eos_token_id=known + SPECIALS.index("<|im_end|>"),
        pad_token_id=known + SPECIALS.index("<|endoftext|>"),
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        Qwen3ForCausalLM(config).save_pretrained(folder)


def _write_tokenizer(folder: Path, merges: Sequence[str], window: int) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())  # one printable letter for each of the 256 bytes
    pairs: Any = [tuple(line.split(" ")) for line in merges]
    vocabulary = {piece: i for i, piece in enumerate([*letters, *(a + b for a, b in pairs)])}
    bpe = Tokenizer(models.BPE(vocabulary, pairs))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=bool(merges))
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens(list(SPECIALS))
    PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>", model_max_length=window
    ).save_pretrained(folder)
