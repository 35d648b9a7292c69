"""Endings to settlements, and the retry of a failed evaluation."""

import pytest

from qwengyre.execution.scoring import score, without_grading
from qwengyre.execution.verifiers.base import Grade
from qwengyre.types import Ending, Settlement, Verdict


@pytest.mark.parametrize("ending", [Ending.FINISHED, Ending.HARNESS_TIMEOUT, Ending.HARNESS_CRASH])
def test_three_endings_are_graded(ending: Ending) -> None:
    assert without_grading(ending, "") is None


def test_the_others_are_not() -> None:
    assert without_grading(Ending.OVERALL_TIMEOUT, "x") == Settlement(Verdict.DROPPED, reason="overall time-out")
    assert without_grading(Ending.LOST, "killed") == Settlement(Verdict.DROPPED, reason="killed")
    found = without_grading(Ending.NOTHING_TO_ASSESS, "image 'x' is not in [sandbox.images]")
    assert found == Settlement(Verdict.PLACEHOLDER, 0.0, "image 'x' is not in [sandbox.images]")


async def test_a_failed_evaluation_is_tried_again() -> None:
    tried: list[int] = []

    async def grade(attempt: int) -> Grade:
        tried.append(attempt)
        return Grade(None, "no reward") if attempt < 2 else Grade(0.0, detail={"passed": 0})

    settled = await score(grade, work="abc", retries=2)
    assert settled == Settlement(Verdict.SCORED, 0.0, work="abc", detail={"passed": 0, "attempts": 3})
    assert tried == [0, 1, 2]


async def test_and_then_dropped_never_zero() -> None:
    async def grade(attempt: int) -> Grade:
        return Grade(None, f"reason {attempt}")

    settled = await score(grade, work="abc", retries=1)
    assert settled.verdict is Verdict.DROPPED
    assert settled.reason == "evaluation failed 2 times on the same work: reason 1"
    assert settled.detail["reasons"] == ["reason 0", "reason 1"]
