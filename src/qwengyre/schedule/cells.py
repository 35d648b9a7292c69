"""The cells of a run, in their order, and what follows from their roles."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

from immutables import Map

from qwengyre.schedule.frozen import Frozen
from qwengyre.types import ExecutionId, Role


@dataclass(frozen=True)
class Cell(Frozen):
    """One cell. `capacity` = C_e; `homes` are its unfinished executions, suspended ones included.

    Messages of an incarnation older than `incarnation` are refused (-1: none was reported yet). `waits` marks a
    restarted cell (still LOST to the rules) that stays out of the order while a later cell trains.
    """

    role: Role
    capacity: int
    incarnation: int = -1
    waits: bool = False
    homes: Map[ExecutionId, bool] = field(default_factory=Map[ExecutionId, bool])

    @property
    def free(self) -> int:
        """Places left; negative when the capacity shrank under its executions."""
        return self.capacity - len(self.homes)


@dataclass(frozen=True)
class Formation:
    """Cells by role, each in order: indices. Sums of capacity in executions."""

    rollout: tuple[int, ...]
    training: tuple[int, ...]
    """Cells that train or are on their way to."""
    to_training: tuple[int, ...]
    to_rollout: tuple[int, ...]
    waiting: tuple[int, ...]
    next: tuple[int, ...]
    """Cells that could go to train: in rollout, or waiting."""
    capacity: int
    """Of the cells in rollout."""
    coming: int
    """Of the cells on their way to it."""


class Cells(tuple[Cell, ...]):
    """All cells. An execution that comes or goes changes no role: what follows from roles is then kept."""

    @cached_property
    def formation(self) -> Formation:
        """Computed once for each change of a role or a capacity."""
        by = {role: tuple(i for i, cell in enumerate(self) if cell.role is role) for role in Role}
        waiting = tuple(i for i, cell in enumerate(self) if cell.waits)
        return Formation(
            rollout=by[Role.ROLLOUT],
            training=tuple(sorted(by[Role.TRAINING] + by[Role.TO_TRAINING])),
            to_training=by[Role.TO_TRAINING],
            to_rollout=by[Role.TO_ROLLOUT],
            waiting=waiting,
            next=tuple(sorted(by[Role.ROLLOUT] + waiting)),
            capacity=sum(self[i].capacity for i in by[Role.ROLLOUT]),
            coming=sum(self[i].capacity for i in by[Role.TO_ROLLOUT]),
        )

    def but(self, index: int, **changes: Any) -> Self:
        """With fields of one cell replaced."""
        return self._with(index, self[index].but(**changes))

    def house(self, index: int, execution: ExecutionId) -> Self:
        """With an execution at home in a cell."""
        cell = self[index]
        return self._keeping(self._with(index, cell.but(homes=cell.homes.set(execution, True))))

    def vacate(self, index: int, execution: ExecutionId) -> Self:
        """Inverse of `house`."""
        cell = self[index]
        return self._keeping(self._with(index, cell.but(homes=cell.homes.delete(execution))))

    def _with(self, index: int, cell: Cell) -> Self:
        cells = list(self)
        cells[index] = cell
        return type(self)(cells)

    def _keeping(self, new: Self) -> Self:
        if (formation := self.__dict__.get("formation")) is not None:
            new.__dict__["formation"] = formation
        return new
