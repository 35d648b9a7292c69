"""What every transfer of keys and values must do. Over the transfers of tensors, which have a contract of their own.

Yours: QWENGYRE_KV=package.module:Class pytest tests/contract/test_kv_transfer.py; it is made with a name, unique in
the run.
"""

import os
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch

from qwengyre.errors import TransferError
from qwengyre.transfer.kv import KVTransfer, TensorKV
from qwengyre.transfer.weights import LocalWeights
from qwengyre.types import KVBlock, KVStamp


def local(name: str) -> KVTransfer:
    return TensorKV(LocalWeights(name))


KINDS: dict[str, Any] = {"local": local}
if given := os.environ.get("QWENGYRE_KV"):
    module, _, attribute = given.partition(":")
    KINDS = {given: getattr(import_module(module), attribute)}


@pytest.fixture(params=sorted(KINDS))
def make(request: pytest.FixtureRequest) -> Any:
    return lambda cell: KINDS[request.param](f"{request.node.name}/cell{cell}.0")


def block(number: int, tokens: int, dtype: torch.dtype = torch.float32) -> KVBlock:
    stamp = KVStamp(3, "digest", str(dtype), (2, 1, 4))
    data = torch.randn(2, 2, tokens, 1, 4).to(dtype)
    ids = np.arange(tokens, dtype=np.int32) + number
    return KVBlock(f"cell0.0/{number}", stamp, frozenset({f"0-{number}"}), ids, data)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_pull_is_complete_and_the_pullers_own(make: Any, dtype: torch.dtype) -> None:
    source, destination = make(0), make(1)
    blocks = [block(1, 20, dtype), block(2, 33, dtype)]
    ticket = source.expose(blocks)
    pulled = destination.pull(ticket)
    for there, here in zip(pulled, blocks, strict=True):
        assert (there.id, there.stamp, there.handles) == (here.id, here.stamp, here.handles)
        assert np.array_equal(there.ids, here.ids)
        assert there.data.dtype == dtype
        assert torch.equal(there.data, here.data)
        assert there.data.data_ptr() != here.data.data_ptr()


def test_what_travels_through_control_holds_no_data(make: Any) -> None:
    ticket = make(0).expose([block(1, 20)])
    assert [b.data for b in ticket.blocks] == [None]


def test_a_freed_ticket_cannot_be_pulled(make: Any) -> None:
    source, destination = make(0), make(1)
    ticket = source.expose([block(1, 20)])
    source.free(ticket)
    source.free(ticket)
    with pytest.raises(TransferError):
        destination.pull(ticket)


def test_a_large_batch_of_blocks(make: Any) -> None:
    source, destination = make(0), make(1)
    blocks = [block(n, 16 + n) for n in range(64)]
    assert [b.tokens for b in destination.pull(source.expose(blocks))] == [b.tokens for b in blocks]
