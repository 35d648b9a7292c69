"""From an ending to a settlement: what is scored, what is tried again, what is dropped, what is a placeholder.

finished | harness time-out | harness crash -> frozen -> evaluating -> scored
                                                             \\-> failed -> again, the same hash -> dropped
overall time-out | lost -> dropped                nothing to assess -> placeholder, reward 0
"""

from collections.abc import Awaitable, Callable

from qwengyre.execution.verifiers.base import Grade
from qwengyre.types import Ending, Settlement, Verdict


def without_grading(ending: Ending, reason: str) -> Settlement | None:
    """The settlement of an ending that leaves nothing to grade; None for the three that are graded."""
    if ending is Ending.NOTHING_TO_ASSESS:
        return Settlement(Verdict.PLACEHOLDER, 0.0, reason or "nothing to assess")
    if ending is Ending.OVERALL_TIMEOUT:
        return Settlement(Verdict.DROPPED, reason="overall time-out")
    if ending is Ending.LOST:
        return Settlement(Verdict.DROPPED, reason=reason or "the sandbox was lost")
    return None


async def score(grade: Callable[[int], Awaitable[Grade]], *, work: str, retries: int) -> Settlement:
    """Grade the same frozen work until an evaluation succeeds, at most 1 + `retries` times; then drop.

    `grade` is called with the attempt, from 0. `work` is the hash of what each attempt grades.
    """
    reasons: list[str] = []
    for attempt in range(1 + retries):
        result = await grade(attempt)
        if result.score is not None and 0 <= result.score <= 1:  # false for NaN
            detail = {**result.detail, "attempts": attempt + 1}
            return Settlement(Verdict.SCORED, result.score, result.reason, work=work, detail=detail)
        reasons.append(result.reason or f"score {result.score} is not in [0, 1]")
    reason = f"evaluation failed {len(reasons)} times on the same work: {reasons[-1]}"
    return Settlement(Verdict.DROPPED, reason=reason, work=work, detail={"attempts": len(reasons), "reasons": reasons})
