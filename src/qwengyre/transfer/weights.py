"""How tensors go from one cell to others: weights out of the core, gradients into it. Control carries tickets only.

A ticket names tensors as they were when they were exposed: the exposer may change its own afterwards.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from qwengyre.errors import TransferError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Ticket:
    """Names exposed tensors. `id` is unique in the run; equal ids name equal tensors. `at` is the transfer's own."""

    id: str
    num_bytes: int
    at: Any = None


class WeightTransfer(Protocol):
    """One for each cell. Calls block; run them off the event loop. Thread-safe."""

    def expose(self, tensors: "Mapping[str, Tensor]") -> Ticket:
        """Let others pull a copy of `tensors`, until `free`."""
        ...

    def pull(self, ticket: Ticket) -> "Mapping[str, Tensor]":
        """What was exposed, complete: names, shapes, dtypes and values. A tensor looked up is the caller's own copy
        (made then, so take each once). Raises TransferError: the exposer died, freed it, or does not answer within the
        limit."""
        ...

    def free(self, ticket: Ticket) -> None:
        """The exposer needs it no longer; a pull under way may still end well. Idempotent."""
        ...


class LocalWeights:
    """Between cells of one process: for tests, and for a cell that has nobody to share with."""

    _exposed: ClassVar[dict[str, "dict[str, Tensor]"]] = {}
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, name: str) -> None:
        """`name` is unique in the run: cell and incarnation."""
        self._name = name
        self._number = 0

    def expose(self, tensors: "Mapping[str, Tensor]") -> Ticket:
        copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        with self._lock:
            self._number += 1
            id = f"{self._name}/{self._number}"
            self._exposed[id] = copies
        return Ticket(id, sum(t.nbytes for t in copies.values()))

    def pull(self, ticket: Ticket) -> "dict[str, Tensor]":
        with self._lock:
            found = self._exposed.get(ticket.id)
        if found is None:
            raise TransferError(f"{ticket.id} is not exposed (any more): ask its owner for a new ticket")
        return {name: tensor.clone() for name, tensor in found.items()}

    def free(self, ticket: Ticket) -> None:
        with self._lock:
            self._exposed.pop(ticket.id, None)
