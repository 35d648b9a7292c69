"""How keys and values go from one cell's engine to another's. Control carries tickets only."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from qwengyre.transfer.weights import Ticket, WeightTransfer
from qwengyre.types import KVBlock


@dataclass(frozen=True)
class KVTicket:
    """Names exposed blocks: `blocks` are they without their data, `at` is the transfer's own."""

    blocks: tuple[KVBlock, ...]
    at: Ticket


class KVTransfer(Protocol):
    """One for each cell. Calls block; run them off the event loop. Thread-safe."""

    def expose(self, blocks: Sequence[KVBlock]) -> KVTicket:
        """Let others pull a copy of `blocks`, until `free`."""
        ...

    def pull(self, ticket: KVTicket) -> tuple[KVBlock, ...]:
        """The blocks, complete, in memory of the caller's own. Raises TransferError: the exposer died, freed them, or
        does not answer within the limit."""
        ...

    def free(self, ticket: KVTicket) -> None:
        """The exposer needs them no longer. Idempotent."""
        ...


class TensorKV:
    """A block's data is one tensor more for the transfer that weights and gradients take."""

    def __init__(self, tensors: WeightTransfer) -> None:
        self._tensors = tensors

    def expose(self, blocks: Sequence[KVBlock]) -> KVTicket:
        at = self._tensors.expose({block.id: block.data for block in blocks})
        return KVTicket(tuple(replace(block, data=None) for block in blocks), at)

    def pull(self, ticket: KVTicket) -> tuple[KVBlock, ...]:
        tensors = self._tensors.pull(ticket.at)
        return tuple(replace(block, data=tensors[block.id]) for block in ticket.blocks)

    def free(self, ticket: KVTicket) -> None:
        self._tensors.free(ticket.at)
