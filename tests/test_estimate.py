"""Means and differences with intervals that hold, for samples that come in tasks."""

import math
import statistics

import numpy as np
import pytest

from qwengyre.estimate import Estimate, difference, mean


def test_equal_sizes_are_the_interval_of_task_means() -> None:
    tasks = [[0.0, 0.5], [1.0, 1.0], [0.5, 0.5], [0.0, 0.0], [1.0, 0.5], [0.0, 1.0]]
    means = [statistics.mean(task) for task in tasks]
    half = 2.571 * statistics.stdev(means) / math.sqrt(6)  # t(0.975, 5)
    found = mean(tasks)
    assert found is not None
    assert (found.mean, found.n) == (pytest.approx(4 / 8), 12)
    assert found.low == pytest.approx(0.5 - half, abs=2e-3)
    assert found.high == pytest.approx(0.5 + half, abs=2e-3)


def test_samples_of_one_task_do_not_pass_for_tasks() -> None:
    """Ten times the same answer is no news."""
    once, often = mean([[0.0], [1.0], [1.0], [0.0]]), mean([[0.0] * 10, [1.0] * 10, [1.0] * 10, [0.0] * 10])
    assert once is not None
    assert often is not None
    assert (once.low, once.high) == (often.low, often.high)


def test_what_is_missing_is_no_zero() -> None:
    assert mean([[], [1.0, 0.5], []]) == Estimate(0.75, 0.0, 1.0, 2), "of one task alone nothing follows"
    assert mean([[], []]) is None
    assert difference({"a": [1.0], "b": []}, {"b": [1.0]}) is None


def test_equal_tasks_have_an_interval_all_the_same() -> None:
    assert mean([[0.0]] * 30) == Estimate(0.0, 0.0, 0.1, 30)
    same = {str(i): [i / 30] for i in range(30)}
    assert difference(same, same) == Estimate(0.0, -0.1, 0.1, 30)


def test_a_difference_is_paired_by_task() -> None:
    """Tasks differ by far more than training changes them; only tasks with both count."""
    before = {str(i): [i / 20, i / 20] for i in range(16)} | {"only before": [1.0]}
    after = {str(i): [i / 20 + 0.1 + 0.01 * (i % 2)] for i in range(16)} | {"only after": [0.0]}
    found = difference(before, after)
    assert found is not None
    assert (found.mean, found.n) == (pytest.approx(0.105), 16)
    assert 0.1 < found.low < found.high < 0.11


def test_95_of_100_intervals_hold_the_truth() -> None:
    """Of tasks whose own means differ, in four samples each."""
    rng, held = np.random.default_rng(0), 0
    for _ in range(1000):
        truth = rng.beta(2, 3, size=40)
        found = mean([(rng.random(4) < p).astype(float).tolist() for p in truth])
        assert found is not None
        held += found.low <= 0.4 <= found.high
    assert 930 <= held <= 970
