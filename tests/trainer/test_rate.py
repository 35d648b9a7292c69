import doctest
from itertools import pairwise

import pytest

from qwengyre.trainer import rate as module
from qwengyre.trainer.rate import Schedule, rate

SCHEDULES: tuple[Schedule, ...] = ("constant", "linear", "cosine")


def test_its_example():
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_it_rises_to_the_peak_and_never_again(schedule: Schedule):
    rates = [rate(step, 20, 3e-4, schedule, 4) for step in range(20)]
    assert rates[:4] == pytest.approx([0.75e-4, 1.5e-4, 2.25e-4, 3e-4])
    assert all(later <= earlier for earlier, later in pairwise(rates[3:]))
    assert all(0 < one <= 3e-4 for one in rates)


def test_where_they_end():
    last = {schedule: rate(99, 100, 1.0, schedule) for schedule in SCHEDULES}
    assert last == {"constant": 1.0, "linear": pytest.approx(0.01), "cosine": pytest.approx(0.000247, abs=1e-6)}
    assert rate(50, 100, 1.0, "cosine") == pytest.approx(0.5)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_run_shorter_than_its_warmup_and_one_longer_than_it_was(schedule: Schedule):
    assert rate(1, 2, 1.0, schedule, 10) == pytest.approx(0.2)
    assert 0 <= rate(5, 3, 1.0, schedule) <= 1
    assert rate(0, 1, 1.0, schedule) == 1.0
    assert rate(0, 1, 0.0, schedule) == 0.0
