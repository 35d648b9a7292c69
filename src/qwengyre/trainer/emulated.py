"""A trainer without a model: a micro-step takes tokens / tokens_per_s, an optimizer step `optimizer_s`; nothing learns.

For whole systems under load on one machine, beside `engine.kind=emulated`. Needs no torch.
"""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qwengyre.types import MicroStep

STATE = "emulated.json"
SUMS = ("tokens", "targets", "loss", "mismatch_kl", "clipped", "ratio", "ratio_squared", "entropy")


class EmulatedTrainer:
    """A `Trainer`. `trainer.args`: `tokens_per_s` of a cell, `optimizer_s`, `time_scale`: how much faster time goes.
    What a trainer with a model needs besides is not looked at."""

    needs_model = False

    def __init__(
        self,
        model: object = None,
        *,
        tokens_per_s: float = 2000.0,
        optimizer_s: float = 0.5,
        time_scale: float = 1.0,
        **_: Any,
    ) -> None:
        self._tokens_per_s, self._optimizer_s = tokens_per_s * time_scale, optimizer_s / time_scale
        self._steps = 0

    def wake(self) -> None:
        """See `Trainer`."""

    def sleep(self) -> None:
        """See `Trainer`."""

    def accumulate(self, micro_step: MicroStep) -> dict[str, float]:
        """See `Trainer`: every target is worth the same, none moved."""
        time.sleep(micro_step.tokens / self._tokens_per_s)
        targets = float(np.count_nonzero(micro_step.weights))
        counted = {"tokens": float(micro_step.tokens), "targets": targets, "ratio": targets, "ratio_squared": targets}
        return dict.fromkeys(SUMS, 0.0) | counted

    def optimizer_step(self, scale: float, learning_rate: float) -> dict[str, float]:
        """See `Trainer`."""
        time.sleep(self._optimizer_s)
        self._steps += 1
        return {"grad_norm": 0.0}

    def save(self, folder: Path) -> None:
        """See `Trainer`: a folder that no model is in."""
        (folder / STATE).write_text(json.dumps({"steps": self._steps}))

    def load(self, folder: Path) -> None:
        """See `Trainer`."""
        self._steps = int(json.loads((folder / STATE).read_text())["steps"])

    def gradient(self) -> dict[str, Any]:
        """See `Trainer`: there are no parameters."""
        return {}

    def add(self, gradient: Mapping[str, Any]) -> None:
        """See `Trainer`."""

    def parameters(self) -> dict[str, Any]:
        """See `Trainer`."""
        return {}
