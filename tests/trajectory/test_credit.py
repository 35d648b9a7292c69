import pytest

from qwengyre.trajectory.credit import advantages, counted
from qwengyre.types import Settlement, Verdict

DROPPED = Settlement(Verdict.DROPPED, score=0.9, reason="the verifier crashed on each retry")


def scored(*scores: float) -> dict[int, Settlement]:
    return {member: Settlement(Verdict.SCORED, score=score) for member, score in enumerate(scores)}


def test_a_dropped_member_has_no_entry_and_no_say():
    assert advantages(scored(0, 1, 0.5) | {3: DROPPED}) == {0: -0.5, 1: 0.5, 2: 0.0}
    assert counted(scored(0, 1, 0.5) | {3: DROPPED}) == [0, 1, 2]


def test_a_placeholder_is_a_zero_that_counts():
    members = scored(1, 0.5) | {2: Settlement(Verdict.PLACEHOLDER)}
    assert advantages(members) == {0: 0.5, 1: 0.0, 2: -0.5}
    assert counted(members) == [0, 1, 2]


@pytest.mark.parametrize("num", [2, 3, 7, 8])
def test_equal_scores_are_exactly_zero(num):
    assert set(advantages(scored(*[0.1] * num)).values()) == {0.0}
    assert set(advantages(scored(*[0.1] * num), std=True).values()) == {0.0}


def test_the_deviation_is_optional():
    assert advantages(scored(0, 1), std=True) == {0: -1.0, 1: 1.0}
    assert advantages(scored(0.2, 0.6, 0.4, 0.4), std=True)[1] == pytest.approx(2**0.5)


def test_nobody_left():
    assert advantages({0: DROPPED}) == {}
