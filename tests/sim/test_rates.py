"""Speed of executions that share a cell."""

import pytest

from qwengyre.sim.rates import Rates
from qwengyre.sim.workload import Rate


@pytest.mark.parametrize(("env", "alpha"), [(0.4, 0.0103), (0.0, 1.0), (0.9, 0.3)])
def test_the_number_that_decodes_is_self_consistent(env: float, alpha: float) -> None:
    rates = Rates(Rate(env_frac=env, alpha=alpha))
    assert rates[1] == pytest.approx(1.0)
    for executions in (2, 7, 64):
        decode = 1 / rates[executions] - env
        decoding = executions * decode / (env + decode)
        assert decode == pytest.approx((1 - env) * (1 + alpha * max(0.0, decoding - 1)), rel=1e-6)
        assert rates[executions] <= rates[executions - 1]


@pytest.mark.parametrize("rate", [Rate(env_frac=1.0, alpha=5.0), Rate(env_frac=0.3, alpha=0.0)])
def test_without_decoding_or_slope_nobody_is_slowed_down(rate: Rate) -> None:
    assert Rates(rate)[50] == pytest.approx(1.0)
    assert Rates(rate).throughput(50) == pytest.approx(50.0)


def test_throughput_is_the_best_number_of_executions_up_to_the_slots() -> None:
    rates = Rates(Rate(env_frac=0.0, alpha=1.0))  # R(n) = 1/n: more executions get no more done
    assert rates.throughput(9) == pytest.approx(1.0)
