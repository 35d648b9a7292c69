"""What cells did with their time, from the scheduler's events alone: busy, idle, moving.

A cell in rollout is busy while an unfinished execution is at home there; cells in training while micro-steps are
claimed (fewer claims than cells: that share of each), the core also while it applies the optimizer. Between two roles
a cell is moving. One that is lost, or not ready yet, is none of the three. This is what the scheduler saw, not what a
processor did.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from qwengyre.schedule.events import Event
from qwengyre.schedule.state import Phase, Plan, State
from qwengyre.schedule.step import start, step
from qwengyre.types import Role


@dataclass
class Use:
    """Seconds of one cell."""

    busy: float = 0.0
    idle: float = 0.0
    moving: float = 0.0


def cell_use(plan: Plan, events: Iterable[Event]) -> list[Use]:
    """One for each cell, over all events. Raises ValueError for events that cannot be."""
    state, uses = start(plan), [Use() for _ in range(plan.num_cells)]
    for event in events:
        before = state
        state, _ = step(state, event)
        for cell, use in enumerate(uses):
            _add(use, before, cell, state.at - before.at)
    return uses


def _add(use: Use, state: State, cell: int, seconds: float) -> None:
    role = state.cells[cell].role
    if role is Role.LOST or state.cells[cell].incarnation < 0:
        return
    if role in (Role.TO_ROLLOUT, Role.TO_TRAINING):
        use.moving += seconds
    else:
        share = _training(state, cell) if role is Role.TRAINING else float(bool(state.cells[cell].homes))
        use.busy += share * seconds
        use.idle += (1 - share) * seconds


def _training(state: State, cell: int) -> float:
    """The share of its time that a training cell works."""
    if cell == 0 and state.phase is Phase.CLOSING:
        return 1.0
    train = sum(c.role is Role.TRAINING for c in state.cells)
    return min(1.0, state.claimed / train)
