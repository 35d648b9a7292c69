"""What a cell needs of a trainer. Only the core cell's trainer has an optimizer; every trainer has a gradient."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from qwengyre.types import MicroStep


class Trainer(Protocol):
    """Life: (wake -> accumulate* -> (core) optimizer_step -> sleep)*. Calls block; run them off the event loop."""

    def wake(self) -> None:
        """Take the memory that training needs."""
        ...

    def sleep(self) -> None:
        """Give back everything but parameters (and, on the core, optimizer state)."""
        ...

    def accumulate(self, micro_step: MicroStep) -> dict[str, float]:
        """Add the gradient of `micro_step` to this trainer's buffer. Returns sums over its weighted tokens, to be
        added over micro-steps, plain floats: tokens, targets, loss, mismatch_kl, clipped, ratio, ratio_squared,
        entropy."""
        ...

    def optimizer_step(self, scale: float, learning_rate: float) -> dict[str, float]:
        """Core only. Gradient x scale (1/E), clip, step, zero. Returns grad_norm (before clipping) and others."""
        ...

    def save(self, folder: Path) -> None:
        """Write a HF-layout folder plus optimizer and RNG state into an existing empty folder."""
        ...

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote, in place (the parameters stay the same objects)."""
        ...

    def gradient(self) -> dict[str, Any]:
        """Name -> accumulated gradient tensor (a reference, not a copy); zeros where nothing was added."""
        ...

    def add(self, gradient: Mapping[str, Any]) -> None:
        """Add `gradient` (name -> tensor, as `gradient` gives it) to this trainer's buffer."""
        ...

    def parameters(self) -> dict[str, Any]:
        """Name -> parameter (the objects themselves; copy into them to change the weights)."""
        ...
