"""`tiny`: a Qwen3 from scratch for tests. 0.1 M parameters, byte-level tokens, ChatML specials, window 4096."""

from pathlib import Path

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
WINDOW = 4096


def tiny(folder: Path, *, layers: int = 2, hidden: int = 64, seed: int = 0) -> None:
    """Write the model (grouped-query attention, tied embeddings, seeded weights) into the existing empty `folder`."""
    _write_tokenizer(folder)
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=256 + len(SPECIALS),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=hidden // 4,
        max_position_embeddings=WINDOW,
        tie_word_embeddings=True,
        eos_token_id=256 + SPECIALS.index("<|im_end|>"),
        pad_token_id=256 + SPECIALS.index("<|endoftext|>"),
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        Qwen3ForCausalLM(config).save_pretrained(folder)


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())  # one printable letter for each of the 256 bytes
    bpe = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens(list(SPECIALS))
    PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>", model_max_length=WINDOW
    ).save_pretrained(folder)
