"""Means with 95% intervals over tasks. Samples of one task are not independent: tasks are what is drawn, not samples.

T tasks, task t has n_t samples with sum S_t; n = sum n_t.

    mean        m = sum S_t / n
    its error   s^2 = T / (T - 1) * sum (S_t - n_t m)^2 / n^2        (equal n_t: the standard error of the task means)
    difference  the mean of d_t = mean after - mean before over tasks with both, s^2 = sum (d_t - d)^2 / (T (T - 1))
    interval    mean -+ t(0.975, T - 1) s, inside [0, 1] (a difference: [-1, 1])

Where all T tasks say the same, s is 0 and says nothing: then 3 / T stands for the half width, since a share of tasks
above that which behave otherwise would have shown with 95%. One task alone: the whole range.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

_T975 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}


@dataclass(frozen=True)
class Estimate:
    """A mean and its 95% interval; `n` samples (of a difference: tasks)."""

    mean: float
    low: float
    high: float
    n: int


def mean(samples: Sequence[Sequence[float]]) -> Estimate | None:
    """Of the scores of each task, each in [0, 1]. None where there is none."""
    tasks = [task for task in samples if task]
    n = sum(map(len, tasks))
    if not n:
        return None
    middle = sum(map(sum, tasks)) / n
    rests = [sum(task) - len(task) * middle for task in tasks]
    error = sqrt(sum(rest * rest for rest in rests) * len(tasks) / max(len(tasks) - 1, 1)) / n
    return _within(middle, error, len(tasks), n, (0.0, 1.0))


def difference(before: Mapping[str, Sequence[float]], after: Mapping[str, Sequence[float]]) -> Estimate | None:
    """After less before, paired: task -> its scores. None where no task has both."""
    both = [task for task, scores in before.items() if scores and after.get(task)]
    if not both:
        return None
    steps = [_mean(after[task]) - _mean(before[task]) for task in both]
    middle = _mean(steps)
    error = sqrt(sum((step - middle) ** 2 for step in steps) / max(len(both) - 1, 1) / len(both))
    return _within(middle, error, len(both), len(both), (-1.0, 1.0))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _within(middle: float, error: float, tasks: int, n: int, span: tuple[float, float]) -> Estimate:
    if tasks == 1:
        return Estimate(middle, *span, n)
    half = _t975(tasks - 1) * error if error > 1e-12 else 3 / tasks
    return Estimate(middle, max(middle - half, span[0]), min(middle + half, span[1]), n)


def _t975(freedom: int) -> float:
    """The 97.5% point of Student's t (from 5 degrees of freedom on by its expansion, to 3 digits)."""
    if freedom in _T975:
        return _T975[freedom]
    z, v = 1.959964, freedom
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    )
