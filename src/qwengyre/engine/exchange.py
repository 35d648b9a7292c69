"""Keys and values that leave for another engine or come from one: in the torch thread, between two forward passes.

What an engine exports is pinned here until it is freed; what it imports must have been made by the same model under
the same weights, else the tokens are computed again. Nothing here is exact "enough": a stamp is equal or refused.
"""

import dataclasses
from collections.abc import Collection, Sequence

import numpy as np
from torch import nn

from qwengyre.engine.batch import Batch
from qwengyre.engine.forward import kv_shape, model_digest
from qwengyre.engine.kv import Resting
from qwengyre.errors import EngineError
from qwengyre.types import KVBlock, KVStamp


class Exchange:
    """Blocks out of and into a batch of the engine `name`, which serves `model`."""

    def __init__(self, name: str, model: nn.Module) -> None:
        shape = kv_shape(model)
        self._name = name
        self._stamp = KVStamp(0, model_digest(model), str(shape.dtype), (shape.layers, shape.heads, shape.width))

    def export(self, batch: Batch, handles: Collection[str]) -> tuple[KVBlock, ...]:
        """End the calls of these executions and pin all their sequences."""
        wanted = frozenset(handles)
        return tuple(
            KVBlock(f"{self._name}/{key}", self._made_under(r.version), wanted.intersection(r.handles), r.ids, r.strip)
            for key, r in batch.export(wanted).items()
        )

    def unpin(self, batch: Batch, ids: Collection[str], moved: bool) -> None:
        """Give pinned blocks back; ids of other engines and of freed blocks mean nothing here."""
        names = (block.rpartition("/") for block in ids)
        batch.unpin([int(key) for engine, _, key in names if engine == self._name], moved)

    def adopt(self, batch: Batch, blocks: Sequence[KVBlock], handles: Collection[str]) -> int:
        """Keep the blocks, whose data nobody writes to; calls that wait for `handles` go on in any case. Returns the
        tokens kept.

        Raises EngineError, keeping none, when one of them cannot stand for tokens computed here.
        """
        batch.arrived(frozenset(handles))
        for block in blocks:
            self._refuse(block, self._made_under(batch.version))
        return sum(block.tokens for block in blocks if batch.adopt(_resting(block)))

    def _made_under(self, version: int) -> KVStamp:
        return dataclasses.replace(self._stamp, version=version)

    def _refuse(self, block: KVBlock, mine: KVStamp) -> None:
        for field in dataclasses.fields(KVStamp):
            theirs, ours = getattr(block.stamp, field.name), getattr(mine, field.name)
            if theirs != ours:
                raise EngineError(
                    f"keys and values {block.id} have {field.name} {theirs}, engine {self._name} has {ours}: "
                    "prefill again"
                )
        layers, heads, width = mine.shape
        given, expected = tuple(block.data.shape), (2, layers, block.tokens, heads, width)
        if (given, str(block.data.dtype), block.ids.dtype) != (expected, mine.dtype, np.int32):
            raise EngineError(
                f"keys and values {block.id} are {block.data.dtype} {given} for {block.ids.dtype} ids, expected "
                f"{mine.dtype} {expected} for int32 ids: prefill again"
            )


def _resting(block: KVBlock) -> Resting:
    return Resting(block.ids, block.data, block.stamp.version, dict.fromkeys(block.handles, block.tokens))
