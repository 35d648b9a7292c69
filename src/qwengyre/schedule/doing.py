"""What each cell does at this moment, in one word a cell: for people. Pure; no rule reads it."""

from enum import StrEnum

from qwengyre.schedule.state import Phase, State
from qwengyre.types import Role


class Doing(StrEnum):
    """A role of a cell, and whether it has work in it."""

    ROLLOUT = "rollout"
    """An unfinished execution is at home here."""
    EVALUATION = "evaluation"
    """The executions at home here are all of an evaluation."""
    TRAINING = "training"
    """Micro-steps are claimed, or the optimizer runs at the core."""
    TO_TRAINING = "to_training"
    TO_ROLLOUT = "to_rollout"
    IDLE = "idle"
    """In rollout without an execution, or in training without a micro-step."""
    LOST = "lost"
    AWAY = "away"
    """Not there yet: it never reported that it is ready."""


def doing(state: State) -> tuple[Doing, ...]:
    """One word for each cell of the plan."""
    return tuple(_one(state, cell) for cell in range(len(state.cells)))


def _one(state: State, index: int) -> Doing:
    cell = state.cells[index]
    if cell.incarnation < 0:
        return Doing.AWAY
    if cell.role is Role.ROLLOUT:
        if not cell.homes:
            return Doing.IDLE
        return Doing.EVALUATION if all(e.evaluation >= 0 for e in cell.homes) else Doing.ROLLOUT
    if cell.role is Role.TRAINING:
        works = state.claimed > 0 or (index == 0 and state.phase is Phase.CLOSING)
        return Doing.TRAINING if works else Doing.IDLE
    return Doing(str(cell.role))
