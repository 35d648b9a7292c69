"""One call of `step` in progress: the state so far, and what it asks. It lives no longer than that call."""

from typing import Any

from qwengyre.schedule.actions import Action
from qwengyre.schedule.state import NOWHERE, Asked, State
from qwengyre.types import ExecutionId


class Turn:
    """Rules read `state`, replace parts of it, and ask actions, which get their ids here."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.actions: list[Action] = []

    def put(self, **changes: Any) -> None:
        """Replace fields of the state."""
        self.state = self.state.but(**changes)

    def put_cell(self, index: int, **changes: Any) -> None:
        """Replace fields of one cell."""
        self.put(cells=self.state.cells.but(index, **changes))

    def ask(self, kind: type[Action], about: str = "", **fields: Any) -> None:
        """Ask an action. With `about`, it stays in the state until `answer(about)`."""
        number = self.state.next_action
        action = kind(f"{kind.type}-{number}", **fields)
        self.actions.append(action)
        self.put(next_action=number + 1)
        if about:
            self.put(asked=self.state.asked.set(about, Asked(action, self.state.at)))

    def answer(self, about: str) -> bool:
        """Was this asked? Then it is answered now."""
        asked = self.state.asked
        if about not in asked:
            return False
        self.put(asked=asked.delete(about))
        return True

    def house(self, execution: ExecutionId, home: int) -> None:
        """Count `execution` at `home` (a cell or NOWHERE)."""
        if home == NOWHERE:
            self.put(homeless=self.state.homeless.set(execution, True))
        else:
            self.put(cells=self.state.cells.house(home, execution))

    def vacate(self, execution: ExecutionId, home: int) -> None:
        """Inverse of `house`."""
        if home == NOWHERE:
            self.put(homeless=self.state.homeless.delete(execution))
        else:
            self.put(cells=self.state.cells.vacate(home, execution))

    def leave_cohort(self, born: int) -> None:
        """A group with v_d = `born` entered a step, or is void."""
        cohorts = self.state.cohorts
        left = cohorts[born] - 1
        self.put(cohorts=cohorts.set(born, left) if left else cohorts.delete(born))

    def enter_cohort(self, born: int) -> None:
        """A group with v_d = `born` is in no step (again)."""
        cohorts = self.state.cohorts
        self.put(cohorts=cohorts.set(born, cohorts.get(born, 0) + 1))
