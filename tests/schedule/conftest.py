"""A run told by hand: send events, look at what the scheduler asks."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from qwengyre.schedule import events as ev
from qwengyre.schedule.actions import Action, Admit, Move
from qwengyre.schedule.state import Life, Plan, State
from qwengyre.schedule.step import start, step
from qwengyre.types import Ending, ExecutionId, Role, Verdict


@dataclass
class Told:
    """The state, the actions of the newest event, and all of the run. Time passes one second an event."""

    state: State
    news: tuple[Action, ...] = ()
    log: list[Action] = field(default_factory=list)

    def send(self, event: type[ev.Event], *fields: Any) -> tuple[Action, ...]:
        self.state, self.news = step(self.state, event(self.state.at + 1.0, *fields))
        self.log += self.news
        return self.news

    def end(self, *executions: tuple[int, int], verdict: Verdict = Verdict.SCORED) -> None:
        """End and settle executions."""
        for name in executions:
            self.send(ev.Ended, ExecutionId(*name), Ending.FINISHED)
            self.send(ev.Settled, ExecutionId(*name), verdict, 1.0)

    def finish(self, *groups: int, micro_steps: int = 2) -> None:
        """End, settle and weigh all executions of groups."""
        for group in groups:
            self.end(*((group, member) for member in range(self.state.plan.group_size)))
            self.send(ev.Weighed, group, micro_steps, 100)

    def void(self, *groups: int) -> None:
        """All executions of groups are dropped."""
        for group in groups:
            members = ((group, member) for member in range(self.state.plan.group_size))
            self.end(*members, verdict=Verdict.DROPPED)

    def backlog(self, pending: int, claimed: int = 0) -> tuple[Action, ...]:
        """The ledger's word; the rest of the expected micro-steps is counted."""
        counted = self.state.expected - pending - claimed
        return self.send(ev.Backlog, self.state.step, pending, claimed, counted)

    def arrive(self, cell: int, role: Role) -> tuple[Action, ...]:
        return self.send(ev.Moved, cell, role)

    def train(self) -> None:
        """The core comes to train if it does not yet, and the open step is trained and closed."""
        if self.state.cells[0].role is Role.ROLLOUT:
            self.backlog(pending=1)
        if self.state.cells[0].role is Role.TO_TRAINING:
            self.backlog(pending=0, claimed=1)
            self.arrive(0, Role.TRAINING)
        self.backlog(pending=0)
        self.send(ev.StepClosed, self.state.step)

    def publish(self) -> tuple[Action, ...]:
        """Publish, and let the cells that return arrive."""
        actions = self.send(ev.Published, self.state.next_version - 1)
        for move in [a for a in actions if isinstance(a, Move)]:
            self.arrive(move.cell, move.role)
        return actions

    def alive(self, cell: int) -> set[str]:
        """Executions at home in a cell."""
        return {str(e) for e, x in self.state.executions.items() if x.home == cell and x.life is not Life.ENDED}

    def admitted(self) -> list[tuple[int, int]]:
        """(group, step) in order."""
        return [(a.group, a.step) for a in self.log if isinstance(a, Admit)]

    def moves(self) -> list[tuple[int, str]]:
        """Moves asked by the newest event."""
        return [(a.cell, str(a.role)) for a in self.news if isinstance(a, Move)]


@pytest.fixture
def begin() -> Callable[..., Told]:
    """A started run: `begin("elastic", cells=2, ...)`. Small letters unless given."""

    def begin_run(kind: str = "elastic", **letters: Any) -> Told:
        small = {"cells": 1, "groups_per_step": 2, "group_size": 2, "steps": 4, "capacity": 4}
        told = Told(start(Plan.for_policy(kind, **(small | letters))))
        told.send(ev.Started)
        for cell in range(told.state.plan.num_cells):
            told.send(ev.CellReady, cell, 1, told.state.plan.capacity)
        told.news = tuple(told.log)
        return told

    return begin_run
