"""One forward pass of a batch, flat or tree, and the proof that a model can do the latter."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from qwengyre.trainer.attention import as_tree
from qwengyre.trainer.batch import Batch, tree_batch
from qwengyre.trajectory.runs import flattened, paths
from qwengyre.types import MicroStep

_TOLERANCE = 5e-4
"""Of the spread of the logits. fp32 gives 1e-5; a layer that mixes branches gives more, untrained ones too."""


def forward(model: nn.Module, batch: Batch) -> Tensor:
    """Logits as the model gives them, [B, L, V] unless its head was narrowed."""
    run: Any = model
    if batch.tree is None:
        return run(input_ids=batch.ids_BL, use_cache=False).logits
    with as_tree(model):
        return run(input_ids=batch.ids_BL, position_ids=batch.positions_BL, use_cache=False, tree=batch.tree).logits


@torch.no_grad()
def runs_trees(model: nn.Module) -> bool:
    """Whether the logits of a small tree are those of its sequences in flat rows: tried, not assumed."""
    lengths, parents = (5, 3, 2, 1), (-1, 2, 6, 0)
    size = sum(lengths)
    vocabulary: int = model.config.vocab_size  # pyright: ignore
    ids = (np.arange(1, size + 1) * 7919 % vocabulary).astype(np.int32)
    nothing = np.zeros(size, np.float32)
    tree = MicroStep("probe", 0, ids, lengths, nothing, nothing, 1.0, parents)
    flat = flattened(tree)
    try:
        made = forward(model, tree_batch(tree, np.zeros(size, np.bool_)))[0].float()
    except (NotImplementedError, TypeError, ValueError, RuntimeError):
        return False
    start = 0
    for path in paths(tree):
        row = torch.from_numpy(flat.ids[start : start + len(path)].astype(np.int64))
        truth = forward(model, Batch(row[None], row[:0], row[:0]))[0].float()
        start += len(path)
        if not float((made[path] - truth).abs().max()) <= _TOLERANCE * float(truth.std()):
            return False
    return True
