"""The learning rate of each step: a pure function of the step, so that a resumed run takes the same."""

from math import cos, pi
from typing import Literal

Schedule = Literal["constant", "linear", "cosine"]


def rate(step: int, steps: int, peak: float, schedule: Schedule = "constant", warmup: int = 0) -> float:
    """The learning rate of `step` (from 0) of `steps`.

    It rises linearly to `peak` over the first `warmup` steps (the last of them has `peak`), then stays, or falls
    towards 0, which it would reach one step after the last: no step is without effect.

    >>> [rate(s, 6, 1.0, "linear", warmup=2) for s in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    match schedule:
        case "constant":
            return peak
        case "linear":
            return peak * max(0.0, 1 - done)
        case "cosine":
            return peak * (1 + cos(pi * min(1.0, done))) / 2
