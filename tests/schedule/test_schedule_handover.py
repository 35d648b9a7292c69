"""Moving keys and values against computing them again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwengyre.schedule.handover import ASSUMED_BANDWIDTH, Rates, worth_moving

KB = 1000


@pytest.mark.parametrize(
    ("tokens", "rates", "moves"),
    [
        (200_000, Rates(40e9, 10_000, 0.1), True),  # 0.6 s against 20 s
        (200_000, Rates(0.5e9, 10_000, 0.1), False),  # 40 s against 20 s
        (100, Rates(40e9, 10_000, 0.1), False),  # messages alone take longer
        (1100, Rates(40e9, 10_000, 0.1), True),
        (1, Rates(None, None), True),  # nothing known: try, and know more
        (10_000, Rates(None, 1000.0), True),  # 4 s at the assumed bandwidth, against 10 s
        (10_000, Rates(None, 5000.0), False),  # against 2 s
    ],
)
def test_the_cheaper_one(tokens: int, rates: Rates, moves: bool) -> None:
    assert worth_moving(tokens, 100 * KB, rates) is moves
    assert ASSUMED_BANDWIDTH == 250e6


@given(
    st.integers(1, 10**6),
    st.integers(1, 10**6),
    st.floats(1e6, 1e12),
    st.floats(1.0, 1e6),
    st.floats(0.0, 1.0),
)
def test_longer_sequences_never_turn_to_recomputing_and_faster_links_never_to_not_moving(
    tokens: int, token_bytes: int, bandwidth: float, prefill: float, latency: float
) -> None:
    rates = Rates(bandwidth, prefill, latency)
    if worth_moving(tokens, token_bytes, rates):
        assert worth_moving(2 * tokens, token_bytes, rates)
        assert worth_moving(tokens, token_bytes, Rates(2 * bandwidth, prefill, latency))
        assert worth_moving(tokens, token_bytes, Rates(bandwidth, prefill / 2, latency))
