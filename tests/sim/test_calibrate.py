"""Slope of decode latency and share of tools, from model calls."""

import pytest

from qwengyre.sim.calibrate import FEW, Ran, fit
from qwengyre.sim.workload import Rate


def calls(alpha: float, batches: list[int]) -> list[Ran]:
    """Batches of calls that run together from start to end, 100 tokens each, 10 ms a token alone."""
    found, now = list[Ran](), 0.0
    for size in batches:
        seconds = 100 * 0.01 * (1 + alpha * (size - 1))
        found += [Ran("cell0.0", now, now + seconds, 100)] * size
        now += seconds + 1.0
    return found


def test_the_slope_is_found() -> None:
    ran = calls(0.2, [1, 2, 5, 9, 3, 1, 4])
    alone = len(ran) * 1.0
    busy = sum(call.until - call.since for call in ran)
    rate = fit(ran, busy + 3 * alone)
    assert rate.alpha == pytest.approx(0.2, rel=1e-6)
    assert rate.env_frac == pytest.approx(0.75, rel=1e-6)


def test_engines_do_not_slow_each_other_down() -> None:
    ran = [call for i, call in enumerate(calls(0.0, [4] * 8)) for call in [Ran(f"cell{i % 4}.0", *call_of(call))]]
    assert fit(ran, 100.0).alpha == pytest.approx(0.0, abs=1e-9)


def call_of(call: Ran) -> tuple[float, float, int]:
    return call.since, call.until, call.tokens


def test_calls_that_get_faster_in_company_are_not_believed() -> None:
    assert fit(calls(-0.1, [1, 2, 4, 4, 3, 2, 1]), 100.0).alpha == 0.0


def test_few_calls_say_nothing() -> None:
    assert fit(calls(0.2, [FEW - 1]), 100.0) == Rate()
