"""What a run needs of a task set: its size and its queries."""

from typing import Protocol

from qwengyre.types import Query


class TaskSet(Protocol):
    """A fixed sequence of task instances. Everything that can be wrong with it is raised when it is made."""

    def __len__(self) -> int:
        """How many queries there are."""
        ...

    def __getitem__(self, index: int, /) -> Query:
        """Query `index`, 0 <= index < len. The same value each time."""
        ...
