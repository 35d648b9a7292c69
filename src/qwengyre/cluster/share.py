"""What a cell shares with the others: the core's weights go out, the satellites' gradients come in. Blocking.

A weight set is named by (step, version): `step` = optimizer steps it contains, `version` = what is published. All
gradients of a step are made with the same weights, and each micro-step's gradient reaches the core once:

    satellite  accumulate* > flush: the buffer is exposed and kept > acknowledged: dropped
    core       receive: pulled whole into a second buffer > added > its id and names are counted
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from qwengyre.errors import RefusedError
from qwengyre.trainer.base import Trainer
from qwengyre.transfer.weights import Ticket, WeightTransfer
from qwengyre.types import MicroStep


@dataclass(frozen=True)
class Snapshot:
    """The core's weights, exposed; constant while gradients accumulate."""

    step: int
    version: int
    ticket: Ticket


@dataclass(frozen=True)
class Flush:
    """A satellite's gradient of the micro-steps `names`, exposed until it is acknowledged."""

    id: str
    step: int
    names: tuple[str, ...]
    cell: int
    incarnation: int
    ticket: Ticket


class Share:
    """See the module. One a cell; used by one thread at a time."""

    def __init__(self, trainer: Trainer, transfer: WeightTransfer, name: tuple[int, int], held: tuple[int, int]):
        """`name` = (cell, incarnation); `held` = (step, version) of the weights that the trainer has now."""
        self.cell, self.incarnation = name
        self.step, self.version = held
        self._trainer = trainer
        self._transfer = transfer
        self._awake = False
        self._sums: dict[str, dict[str, float]] = {}
        """Micro-steps in the gradient: at the core also those of the satellites (without sums)."""
        self._parked: dict[str, Any] = {}
        """The core's gradient of an open step while it rolls out."""
        self._current: str = ""
        """Id of the ticket that names the weights held, where known."""
        self._own: tuple[int, dict[str, Any]] | None = None
        """The core's (step, weights) while it serves older, published ones."""
        self._exposed: dict[str, Ticket] = {}
        self._published: str = ""
        self._flush: Flush | None = None
        self._flushed: set[str] = set()
        """Ids counted at the core."""
        self._closed: tuple[int, dict[str, float]] = (-1, {})

    # --- weights -----------------------------------------------------------------------------------------------------

    def expose(self, version: int | None = None) -> Snapshot:
        """Core: its weights, copied once for each step. `version` names them from now on: they are published."""
        step, weights = self._own or (self.step, self._trainer.parameters())
        ticket = self._exposed.get(f"step {step}")
        if ticket is None:
            ticket = self._exposed[f"step {step}"] = self._transfer.expose(weights)
        if version is not None:
            self.version, self._published = version, f"step {step}"
        for name in [n for n in self._exposed if n not in (f"step {step}", self._published)]:
            old = self._exposed.pop(name)
            if all(old.id != kept.id for kept in self._exposed.values()):
                self._transfer.free(old)
        if self._own is None:
            self._current = ticket.id
        return Snapshot(step, self.version, ticket)

    def exposed(self) -> Snapshot | None:
        """What `expose` gave for this step, if it did. From any thread: whoever asks in the middle of an optimizer step
        may get the weights before it, as a copy, and learns so when it asks again."""
        own = self._own
        step = own[0] if own else self.step
        ticket = self._exposed.get(f"step {step}")
        return None if ticket is None else Snapshot(step, self.version, ticket)

    def fetch(self, snapshot: Snapshot) -> Callable[[], None]:
        """Pull what is needed now; the function returned changes the weights in place (only then is it another set)."""
        same = (self.step, self.version) == (snapshot.step, snapshot.version) or self._current == snapshot.ticket.id
        pulled = {} if same else self._transfer.pull(snapshot.ticket)

        def take() -> None:
            if pulled:
                self._write(pulled)
            self.step, self.version, self._current = snapshot.step, snapshot.version, snapshot.ticket.id

        return take

    def lay_aside(self, snapshot: Snapshot) -> None:
        """Core, in the middle of a burst: serve the published weights, keep the own ones for the next step."""
        if snapshot.step == self.step and self._own is None:
            return
        take = self.fetch(snapshot)
        own = self._own or (self.step, {n: p.detach().clone() for n, p in self._trainer.parameters().items()})
        take()
        self._own = own

    def restore(self) -> None:
        """Core: its own weights again."""
        if self._own is not None:
            self.step, weights = self._own
            self._write(weights)
            self._own, self._current = None, ""

    def _write(self, weights: Mapping[str, Any]) -> None:
        parameters = self._trainer.parameters()
        if weights.keys() != parameters.keys() or any(weights[n].shape != p.shape for n, p in parameters.items()):
            raise RefusedError(f"cell {self.cell}: a weight set of another model; nothing was changed")
        for name, parameter in parameters.items():
            parameter.detach().copy_(weights[name])

    # --- gradients ---------------------------------------------------------------------------------------------------

    def rise(self, snapshot: Snapshot | None) -> None:
        """Ready to accumulate: a satellite with `snapshot` and an empty buffer, the core with what it had."""
        if snapshot is None:
            self.restore()
        else:
            take = self.fetch(snapshot)
            self._drop()
            take()
        self._trainer.wake()
        self._awake = True
        if self._parked:
            self._trainer.add(self._parked)
            self._parked = {}

    def rest(self, keep: bool) -> None:
        """The trainer sleeps. `keep`: this is the core, whose gradient of the open step must not be lost."""
        if keep and self._awake and self._sums:
            self._parked = {name: tensor.clone() for name, tensor in self._trainer.gradient().items()}
        self._trainer.sleep()
        self._awake = False
        if not keep:
            self._drop()

    def accumulate(self, micro_step: MicroStep, step: int) -> dict[str, float]:
        """Add one micro-step of `step`; a repeated message is answered, not added."""
        self._of_step(step)
        if not self._awake:
            raise RefusedError(f"cell {self.cell} does not train now")
        if micro_step.name not in self._sums:
            self._sums[micro_step.name] = self._trainer.accumulate(micro_step)
        return self._sums[micro_step.name]

    def flush(self, id: str, names: tuple[str, ...]) -> Flush | None:
        """Satellite: expose the gradient of `names`, which must be all it has. None: there is none."""
        if self._flush is not None:
            if self._flush.id != id:
                raise RefusedError(f"cell {self.cell}: flush {self._flush.id} is not acknowledged yet, asked: {id}")
            return self._flush
        if set(names) != set(self._sums):
            raise RefusedError(f"cell {self.cell}: asked to flush {sorted(names)}, it has {sorted(self._sums)}")
        if not names:
            return None
        ticket = self._transfer.expose(self._trainer.gradient())
        self._flush = Flush(id, self.step, names, self.cell, self.incarnation, ticket)
        return self._flush

    def acknowledge(self, id: str) -> None:
        """The core counted flush `id`: drop the buffer. Another id changes nothing."""
        if self._flush is not None and self._flush.id == id:
            self._drop()

    def receive(self, flush: Flush) -> bool:
        """Core: add a flush once it is here, complete. False: its id was counted before."""
        if flush.id in self._flushed:
            return False
        if flush.step != self._own_step:
            raise RefusedError(f"flush {flush.id} is of step {flush.step}, the core is at step {self._own_step}")
        if twice := sorted(self._sums.keys() & set(flush.names)):
            raise RefusedError(f"flush {flush.id}: micro-step {twice[0]} was counted before; nothing was added")
        buffer = self._transfer.pull(flush.ticket)  # the second buffer: whatever fails, the gradient is as it was
        shapes = {name: p.shape for name, p in self._trainer.parameters().items()}
        if {name: tensor.shape for name, tensor in buffer.items()} != shapes:
            raise RefusedError(f"flush {flush.id} does not fit the parameters; nothing was added")
        if self._awake:
            self._trainer.add(buffer)
        else:
            self._parked = {n: t + self._parked[n] if self._parked else t for n, t in buffer.items()}
        self._flushed.add(flush.id)
        self._sums |= {name: {} for name in flush.names}
        return True

    def close(self, step: int, scale: float, learning_rate: float) -> dict[str, float]:
        """Core: the optimizer step. A repeated message is answered, not done."""
        if step == self._closed[0] and step == self.step - 1:
            return self._closed[1]
        self._of_step(step)
        metrics = self._trainer.optimizer_step(scale, learning_rate)
        self._sums.clear()
        self._flushed.clear()
        self.step, self._current = step + 1, ""
        self._closed = step, metrics
        return metrics

    def skip(self, step: int) -> None:
        """Core: `step` had no weight; the weights now count as those after it. Idempotent."""
        if self._own_step != step:
            return
        if self._own is not None:
            self._own = step + 1, self._own[1]
        else:
            self.step = step + 1
        if ticket := self._exposed.get(f"step {step}"):
            self._exposed[f"step {step + 1}"] = ticket

    @property
    def _own_step(self) -> int:
        return self._own[0] if self._own else self.step

    def _drop(self) -> None:
        if self._flush is not None:
            self._transfer.free(self._flush.ticket)
        self._flush = None
        self._sums.clear()
        if self._awake:
            self._trainer.sleep()
            self._trainer.wake()

    def _of_step(self, step: int) -> None:
        if step != self.step:
            raise RefusedError(f"cell {self.cell} has the weights of step {self.step}, asked: step {step}")
