"""A whole run in virtual time: the production loop and scheduler over `SimWorld`, and what came of it as numbers."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from qwengyre.loop import run
from qwengyre.schedule.actions import Action
from qwengyre.schedule.events import Event
from qwengyre.schedule.state import Plan, Stage, State
from qwengyre.schedule.step import start
from qwengyre.sim.bounds import lower_bound
from qwengyre.sim.executions import Drawn, Source
from qwengyre.sim.workload import HOUR, Workload
from qwengyre.sim.world import SimWorld
from qwengyre.types import Role

Watch = Callable[[State], object]
"""Sees the scheduler's state after every event (`observe.timeline.Timeline.see_state`, say)."""


@dataclass(frozen=True)
class Result:
    """One simulated run. Shares are of the time of all cells; `docs/simulator.md` defines every column."""

    policy: str
    hours: float
    hours_per_step: float
    tokens: float
    """Made by executions."""
    timed_out: float
    """Share of the executions that were ended by their time-out."""
    mean_staleness: float
    max_staleness: int
    train_busy: float
    train_idle: float
    slot_fill: float
    moves_per_execution: float
    switches: int
    lower_bound_hours: float

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {name: round(v, 6) if isinstance(v, float) else v for name, v in asdict(self).items()}


@dataclass
class Record:
    """The journal of a simulated run, in memory."""

    entries: list[tuple[Event, tuple[Action, ...]]] = field(default_factory=list[tuple[Event, tuple[Action, ...]]])

    def append(self, event: Event, actions: Sequence[Action], state: State) -> None:
        """Keep a line."""
        self.entries.append((event, tuple(actions)))


@dataclass
class _Watched:
    """A journal that keeps nothing and shows the states."""

    watch: Watch

    def append(self, event: Event, actions: Sequence[Action], state: State) -> None:
        self.watch(state)


class _Nothing:
    """A journal that keeps nothing."""

    def append(self, event: Event, actions: Sequence[Action], state: State) -> None:
        pass


def simulate(plan: Plan, workload: Workload, seed: int = 0) -> tuple[State, Record]:
    """A run, with its journal. Raises RunError when it cannot go on."""
    record, world = Record(), SimWorld(plan, workload, Drawn(workload, plan, seed), seed)
    return asyncio.run(run(start(plan), (), world, record)), record


def measure(
    name: str, plan: Plan, workload: Workload, source: Source, seed: int = 0, watch: Watch | None = None
) -> Result:
    """A run, as numbers. Raises RunError when it cannot go on."""
    world = SimWorld(plan, workload, source, seed)
    journal = _Watched(watch) if watch else _Nothing()
    state = asyncio.run(run(start(plan), (), world, journal))
    return _result(name, state, world, lower_bound(plan, workload, source))


def _result(name: str, state: State, world: SimWorld, bound_s: float) -> Result:
    tally, plan = world.tally, state.plan
    for cell in world.cells:
        cell.advance(world.now)
    staleness = [group.step - group.born for group in state.groups.values() if group.stage is Stage.ADMITTED]
    training = sum(cell.role_s.get(r, 0.0) for cell in world.cells for r in Role if r not in (Role.ROLLOUT, Role.LOST))
    slots = sum(cell.role_s.get(Role.ROLLOUT, 0.0) for cell in world.cells) * plan.capacity
    whole, hours = state.at * plan.num_cells, state.at / HOUR
    return Result(
        policy=name,
        hours=hours,
        hours_per_step=hours / plan.steps,
        tokens=tally.tokens,
        timed_out=tally.timed_out / max(1, tally.ended),
        mean_staleness=sum(staleness) / max(1, len(staleness)),
        max_staleness=max(staleness, default=0),
        train_busy=tally.trained_s / whole if whole else 0.0,
        train_idle=max(0.0, training - tally.trained_s) / whole if whole else 0.0,
        slot_fill=sum(cell.guest_s for cell in world.cells) / slots if slots else 0.0,
        moves_per_execution=tally.moved / max(1, tally.ended),
        switches=tally.switches,
        lower_bound_hours=bound_s / HOUR,
    )
