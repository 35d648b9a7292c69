"""What the world reports. Every event carries `at`: monotonic seconds of the run, continued on resume.

Executions: Started once, then per execution Placed -> Ended -> Settled. Groups: Weighed. Cells: CellReady, Moved,
CellLost. Steps: Backlog, StepClosed, Published, RolledBack.
"""

from dataclasses import dataclass
from typing import ClassVar

from qwengyre.types import Ending, ExecutionId, Role, Verdict


@dataclass(frozen=True)
class Event:
    """Anything that happened. `type` names it in the journal."""

    type: ClassVar[str] = ""
    at: float


@dataclass(frozen=True)
class Started(Event):
    """The run begins: cells of the plan roll out with the initial weights."""

    type: ClassVar[str] = "started"


@dataclass(frozen=True)
class CellReady(Event):
    """A (re)started cell holds the published weights and takes calls; `capacity` = executions it can serve, C_e."""

    type: ClassVar[str] = "cell_ready"
    cell: int
    incarnation: int
    capacity: int


@dataclass(frozen=True)
class Capacity(Event):
    """An engine measured its capacity anew, in executions."""

    type: ClassVar[str] = "capacity"
    cell: int
    executions: int


@dataclass(frozen=True)
class CellLost(Event):
    """A cell died or missed its deadline."""

    type: ClassVar[str] = "cell_lost"
    cell: int
    incarnation: int


@dataclass(frozen=True)
class Moved(Event):
    """A cell finished a Move: `role` is ROLLOUT or TRAINING. It may differ from what was asked (compensated saga)."""

    type: ClassVar[str] = "moved"
    cell: int
    role: Role


@dataclass(frozen=True)
class Placed(Event):
    """The harness of an execution began (p(t) counts these)."""

    type: ClassVar[str] = "placed"
    execution: ExecutionId


@dataclass(frozen=True)
class Ended(Event):
    """Harness over, token sealed: the execution frees its place (f(t) counts these)."""

    type: ClassVar[str] = "ended"
    execution: ExecutionId
    ending: Ending


@dataclass(frozen=True)
class Settled(Event):
    """Scored, placeholder or dropped: its last word. Comes after its Ended."""

    type: ClassVar[str] = "settled"
    execution: ExecutionId
    verdict: Verdict
    score: float


@dataclass(frozen=True)
class Weighed(Event):
    """Answer to Weigh: trees frozen, trajectories selected and weighed. `micro_steps` may be 0 (all advantages 0)."""

    type: ClassVar[str] = "weighed"
    group: int
    micro_steps: int
    tokens: int


@dataclass(frozen=True)
class Backlog(Event):
    """The ledger of the open step: micro-steps nobody has claimed, claimed but not yet counted, counted at the core.

    One follows every Admit and every change. `counted` tells a ledger that is through with all admitted groups from
    one that has not seen the newest Admit yet: both may have nothing pending.
    """

    type: ClassVar[str] = "backlog"
    step: int
    pending: int
    claimed: int
    counted: int


@dataclass(frozen=True)
class StepClosed(Event):
    """Answer to CloseStep: the core applied the optimizer (or skipped it, a step without weight)."""

    type: ClassVar[str] = "step_closed"
    step: int


@dataclass(frozen=True)
class Published(Event):
    """Answer to Publish: every rollout cell holds `version`, and its checkpoint, where one is due, is complete."""

    type: ClassVar[str] = "published"
    version: int


@dataclass(frozen=True)
class RolledBack(Event):
    """The run restarts from the checkpoint that holds `step` finished steps: later steps are trained again from
    journals and scores. `version` is freshly minted. Executions still open when the driver died come as Ended(lost)
    and Settled(dropped) events of their own."""

    type: ClassVar[str] = "rolled_back"
    step: int
    version: int


EVENTS: dict[str, type[Event]] = {
    e.type: e
    for e in (
        Started,
        CellReady,
        Capacity,
        CellLost,
        Moved,
        Placed,
        Ended,
        Settled,
        Weighed,
        Backlog,
        StepClosed,
        Published,
        RolledBack,
    )
}
