"""How much calls slow each other down on an engine, and how much of an execution is spent in tools: from model calls.

    seconds of a call = tokens * (l0 + l1 (n - 1)),  n = mean number of calls that ran with it on its engine

by least squares; alpha = l1 / l0, and env_frac = what is left of active time beside unloaded decoding.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qwengyre.sim.workload import Rate

FEW = 8
"""Fewer calls say nothing: then executions do not slow each other down."""


@dataclass(frozen=True)
class Ran:
    """A model call that ran on `engine` from `since` until `until` (seconds of one clock) and sampled `tokens`."""

    engine: str
    since: float
    until: float
    tokens: int


def fit(calls: Sequence[Ran], active_s: float) -> Rate:
    """`active_s` = seconds that the executions of these calls were active, all together."""
    calls = [call for call in calls if call.until > call.since and call.tokens]
    if len(calls) < FEW:
        return Rate()
    seconds = np.array([call.until - call.since for call in calls])
    tokens = np.array([float(call.tokens) for call in calls])
    beside = np.maximum(0.0, _company(calls) - 1)
    found = np.linalg.lstsq(np.stack([tokens, tokens * beside], axis=1), seconds, rcond=None)[0]
    alone, slope = float(found[0]), float(found[1])
    if slope < 0 or alone <= 0:
        alone, slope = float(seconds.sum() / tokens.sum()), 0.0
    decoding, tools = alone * float(tokens.sum()), max(0.0, active_s - float(seconds.sum()))
    return Rate(env_frac=min(1.0, tools / (tools + decoding)), alpha=slope / alone)


def _company(calls: Sequence[Ran]) -> np.ndarray:
    """For each call, the mean number of calls on its engine while it ran, itself included."""
    by: dict[str, list[int]] = defaultdict(list)
    for i, call in enumerate(calls):
        by[call.engine].append(i)
    mean = np.ones(len(calls))
    for mine in by.values():
        since, until = (np.array([getattr(calls[i], name) for i in mine]) for name in ("since", "until"))
        times = np.sort(np.concatenate([since, until]))
        running = np.searchsorted(np.sort(since), times, "right") - np.searchsorted(np.sort(until), times, "right")
        area = np.concatenate([[0.0], np.cumsum(running[:-1] * np.diff(times))])
        mean[mine] = (np.interp(until, times, area) - np.interp(since, times, area)) / (until - since)
    return mean
