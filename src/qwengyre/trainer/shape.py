"""How deep a tree a model can train in one pass, told by its configuration alone (no torch, no weights).

A tree is exact where a token's hidden state is a function of its ancestors and their positions: full attention. Layers
with a state that runs along the row (recurrent, convolutional) would mix branches; a sliding window cuts by distance in
the row, so it is only right for sequences that it covers wholly.
"""

from collections.abc import Mapping
from typing import Any

UNLIMITED = 1 << 30
_EXACT = frozenset({"full_attention", "attention", "sliding_attention", "chunked_attention", "dense", "sparse", "moe"})
_WINDOWS = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
_FAMILIES = frozenset({"rwkv", "bloom", "mpt"})
"""Recurrent, or with positions counted along the row, and no key that says so."""
_STATEFUL = ("mamba", "ssm", "rwkv", "linear_", "conv_", "lru_", "state_size", "time_step", "block_types")
"""Beginnings of the keys by which configurations name a state along the row."""


def tree_depth(config: Mapping[str, Any]) -> int:
    """Longest sequence that may be part of a tree: 0 none, UNLIMITED any. `config` is a model's `config.json`."""
    config = config.get("text_config") or config
    if config.get("model_type") in _FAMILIES or config.get("alibi"):
        return 0
    if any(key.startswith(_STATEFUL) and config[key] is not None for key in config):
        return 0
    kinds = set(config.get("layer_types") or ())
    if kinds - _EXACT:
        return 0
    if kinds:
        windows = [config.get(_WINDOWS[kind]) for kind in kinds & _WINDOWS.keys()]
    else:
        used = config.get("use_sliding_window", True)
        windows = [config.get(key) for key in _WINDOWS.values()] if used else []
    return min((window for window in windows if window), default=UNLIMITED)
