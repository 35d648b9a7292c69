"""What cells did with their time, from the scheduler's events alone: busy with what, idle, moving.

A cell in rollout is busy while an unfinished execution is at home there; cells in training while micro-steps are
claimed (fewer claims than cells: that share of each), the core also while it applies the optimizer. Between two roles
a cell is moving. One that is lost, or not ready yet, is none of these. This is what the scheduler saw, not what a
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

    rollout: float = 0.0
    evaluation: float = 0.0
    training: float = 0.0
    idle: float = 0.0
    moving: float = 0.0

    @property
    def busy(self) -> float:
        """All work."""
        return self.rollout + self.evaluation + self.training

    @property
    def whole(self) -> float:
        """All its time, from ready to the end, short of losses."""
        return self.busy + self.idle + self.moving


def cell_use(plan: Plan, events: Iterable[Event]) -> list[Use]:
    """One for each cell, over all events. Raises ValueError for events that cannot be."""
    state, uses = start(plan), [Use() for _ in range(plan.num_cells)]
    for event in events:
        before = state
        state, _ = step(state, event)
        add_use(uses, before, state.at - before.at)
    return uses


def add_use(uses: list[Use], state: State, seconds: float) -> None:
    """The scheduler was in `state` for so long."""
    for cell, use in enumerate(uses):
        _add(use, state, cell, seconds)


def _add(use: Use, state: State, cell: int, seconds: float) -> None:
    role = state.cells[cell].role
    if role is Role.LOST or state.cells[cell].incarnation < 0:
        return
    if role in (Role.TO_ROLLOUT, Role.TO_TRAINING):
        use.moving += seconds
    elif role is Role.TRAINING:
        share = _training(state, cell)
        use.training += share * seconds
        use.idle += (1 - share) * seconds
    elif not state.cells[cell].homes:
        use.idle += seconds
    elif state.phase is Phase.EVALUATING:
        use.evaluation += seconds
    else:
        use.rollout += seconds


def _training(state: State, cell: int) -> float:
    """The share of its time that a training cell works."""
    if cell == 0 and state.phase is Phase.CLOSING:
        return 1.0
    train = sum(c.role is Role.TRAINING for c in state.cells)
    return min(1.0, state.claimed / train)
