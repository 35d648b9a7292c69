"""What an execution is worth against its group, and what that makes of each of its tokens.

    loss = 1/E  *  sum over executions e of  A_e / T_e  *  sum over the selected trainable tokens of e

A_e and T_e are known when the group is ready. Only 1/E waits, for the step's other groups: it is one scalar at the
optimizer step, so micro-steps commute.
"""

from collections.abc import Mapping
from math import fsum, sqrt

from qwengyre.types import Settlement, Verdict


def counted(settlements: Mapping[int, Settlement]) -> list[int]:
    """Members that are in the baseline and in E: scored and placeholders, with or without a model call; not dropped."""
    return sorted(member for member, settled in settlements.items() if settled.verdict is not Verdict.DROPPED)


def advantages(settlements: Mapping[int, Settlement], *, std: bool = False) -> dict[int, float]:
    """Member -> A_e = score minus the group's mean, over the members that count; `std` divides by their deviation.

    Example: scores 0, 1, 0.5 and a dropped member give {0: -0.5, 1: 0.5, 2: 0.0}.
    """
    scores = {member: settlements[member].score for member in counted(settlements)}
    if len(set(scores.values())) < 2:
        return dict.fromkeys(scores, 0.0)  # exactly 0: a rounded mean of equal scores must not train
    mean = fsum(scores.values()) / len(scores)
    centred = {member: score - mean for member, score in scores.items()}
    if not std:
        return centred
    deviation = sqrt(fsum(a * a for a in centred.values()) / len(centred))
    return {member: a / deviation for member, a in centred.items()}
