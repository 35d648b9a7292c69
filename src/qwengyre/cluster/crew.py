"""The actors of a run and what control knows of them; shared by the parts that do the scheduler's actions."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from qwengyre.cluster.cell import CellReport
from qwengyre.cluster.checkpoints import Checkpoint
from qwengyre.cluster.record import MoveRecord, StepRecord
from qwengyre.errors import RunError, StartingError
from qwengyre.types import Ending, ExecutionId, Query, Role, Settlement

RETURN_S = 60.0
"""A process that died is back within this, or the run ends."""
RETRY_S = 0.2


@dataclass(frozen=True)
class Hands:
    """Handles of the actors (or anything whose `method.remote(...)` can be awaited)."""

    control: Any
    gateway: Any
    box: Any
    cells: tuple[Any, ...]
    lost: tuple[type[BaseException], ...] = ()
    """What a call raises whose process died or cannot be reached."""


@dataclass
class Live:
    """A cell that listens. `feed` is the task that hands it micro-steps while it trains."""

    report: CellReport
    role: Role = Role.TO_ROLLOUT
    feed: asyncio.Task[None] | None = None


@dataclass
class Crew:
    """`clock` gives seconds of the run; `report(EventClass, *fields)` tells the scheduler what happened."""

    hands: Hands
    clock: Callable[[], float]
    report: Callable[..., None]
    live: dict[int, Live] = field(default_factory=dict[int, Live])
    version: int = 0
    """The published weights."""
    box: int = -1
    """The incarnation of the box; another one's executions are lost."""
    boxed: asyncio.Event = field(default_factory=asyncio.Event)
    """The box is up, and `box` is its incarnation."""
    away: dict[str, float] = field(default_factory=dict[str, float])
    """Process that does not answer -> since when: whoever waits for it waits for its restart."""

    @property
    def waits(self) -> list[str]:
        """Who is waited for, since when."""
        return [f"control waits for {who} to come back, since {at:.0f} s" for who, at in self.away.items()]

    async def call(self, who: str, method: Any, *args: Any) -> Any:
        """Ask a gateway or a box until it answers: it restarts within seconds, and every call is idempotent by id.

        Raises RunError when it is not back after `RETURN_S`.
        """
        while True:
            began = self.clock()
            try:
                answer = await method.remote(*args)
            except (*self.hands.lost, StartingError) as error:
                if began > self.away.get(who, began) + RETURN_S:
                    said = (str(error).splitlines() or [""])[0]
                    raise RunError(
                        f"{who} did not come back in {RETURN_S:.0f} s ({said}). Continue with --resume."
                    ) from error
                self.away.setdefault(who, self.clock())
                await asyncio.sleep(RETRY_S)
            else:
                self.away.pop(who, None)
                return answer

    def handle(self, cell: int) -> Any:
        """The actor of a cell."""
        return self.hands.cells[cell]

    @property
    def core(self) -> Any:
        """The actor that holds the authoritative weights and the only optimizer."""
        return self.hands.cells[0]

    @property
    def rolling(self) -> list[int]:
        """Cells that take calls."""
        return [cell for cell, live in self.live.items() if live.role is Role.ROLLOUT]


class Books(Protocol):
    """What control keeps of a run, and is asked or told."""

    def learning_rate(self, step: int) -> float:
        """Of this optimizer step."""
        ...

    def query_of(self, execution: ExecutionId) -> Query:
        """The task of an execution."""
        ...

    def temperature_of(self, execution: ExecutionId) -> float:
        """What its model calls are sampled at; 0: greedy."""
        ...

    def born(self, group: int) -> int:
        """v_d of a group: steps contained in the weights it was dispatched with."""
        ...

    def note(self, execution: ExecutionId, ending: Ending, settlement: Settlement) -> None:
        """Keep a settlement until its event is in the journal."""
        ...

    def closed(self, record: StepRecord) -> None:
        """A step is closed."""
        ...

    def moved(self, record: MoveRecord) -> None:
        """A move is over, whatever became of it."""
        ...

    def checkpoint_for(self, version: int, steps: int) -> Checkpoint | None:
        """The checkpoint that is due with the publish of `version`, which contains `steps` steps."""
        ...

    def completed(self, checkpoint: Checkpoint, seconds: float) -> None:
        """Its weights are on disk, written in `seconds`: mark it complete."""
        ...


def run_clock(start: float) -> Callable[[], float]:
    """Monotonic seconds of the run, continued from `start` on resume."""
    origin = time.monotonic() - start
    return lambda: time.monotonic() - origin
