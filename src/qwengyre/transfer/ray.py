"""Tensors through Ray's object store: the default on CPUs. Control never holds them, only the reference in a ticket.

torch is imported with the first tensor: a cell without a model needs none.
"""

import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
from ray import exceptions

from qwengyre.errors import TransferError
from qwengyre.transfer.weights import Ticket

if TYPE_CHECKING:
    from torch import Tensor

PULL_S = 60.0
"""A pull that takes longer has failed."""


class RayWeights:
    """Implements `WeightTransfer`. An object lives until its owner freed it and no pull holds it; it dies with the
    owner's process."""

    def __init__(self, name: str) -> None:
        """`name` is unique in the run: cell and incarnation."""
        self._name = name
        self._number = 0
        self._exposed: dict[str, Any] = {}
        self._lock = threading.Lock()

    def expose(self, tensors: "Mapping[str, Tensor]") -> Ticket:
        packed = {name: _packed(tensor) for name, tensor in tensors.items()}
        reference = ray.put(packed)
        with self._lock:
            self._number += 1
            id = f"{self._name}/{self._number}"
            self._exposed[id] = reference
        return Ticket(id, sum(t.nbytes for t in tensors.values()), reference)

    def pull(self, ticket: Ticket) -> "Mapping[str, Tensor]":
        try:
            packed: Any = ray.get(ticket.at, timeout=PULL_S)
        except exceptions.RayError as error:
            cause = (str(error).splitlines() or [""])[0]
            raise TransferError(f"{ticket.id} cannot be pulled: {type(error).__name__}: {cause}") from None
        return Pulled(packed)

    def free(self, ticket: Ticket) -> None:
        with self._lock:
            self._exposed.pop(ticket.id, None)


class Pulled(Mapping[str, "Tensor"]):
    """All of a ticket's tensors, in shared memory as long as this lives; each look-up copies one tensor out of it.

    A weight set is as large as the model: a cell that copied it whole would need room for one more.
    """

    def __init__(self, packed: Mapping[str, tuple[str, tuple[int, ...], np.ndarray]]) -> None:
        """`packed`: name -> dtype, shape, bytes (read-only)."""
        self._packed = packed

    def __getitem__(self, name: str) -> "Tensor":
        return _unpacked(*self._packed[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._packed)

    def __len__(self) -> int:
        return len(self._packed)


def _packed(tensor: "Tensor") -> tuple[str, tuple[int, ...], np.ndarray]:
    """dtype, shape, bytes: numpy arrays travel through shared memory without a copy of their own, any dtype."""
    import torch

    raw = tensor.detach().contiguous().flatten().view(torch.uint8).numpy()
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), raw


def _unpacked(dtype: str, shape: tuple[int, ...], raw: np.ndarray) -> "Tensor":
    import torch

    return torch.from_numpy(raw.copy()).view(getattr(torch, dtype)).reshape(shape)
