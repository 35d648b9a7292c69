"""What the world is asked to begin. It never refuses and never waits: every outcome comes back as an event.

Each action is idempotent by `id`, which is unique in a run; asked-but-not-done actions stay in the state.
"""

from dataclasses import dataclass
from typing import ClassVar

from qwengyre.types import ExecutionId, Role


@dataclass(frozen=True)
class Action:
    """Anything asked. `type` names it in the journal; `id` makes it idempotent."""

    type: ClassVar[str] = ""
    id: str


@dataclass(frozen=True)
class Dispatch(Action):
    """Groups [first, first + count) exist from now on, with weights of `version`; their executions are queued."""

    type: ClassVar[str] = "dispatch"
    first: int
    count: int
    version: int


@dataclass(frozen=True)
class Place(Action):
    """Start the harness of `execution` with its home at `cell`. Answers: Placed, Ended, Settled."""

    type: ClassVar[str] = "place"
    execution: ExecutionId
    cell: int


@dataclass(frozen=True)
class Rehome(Action):
    """From now on the calls of these executions go to the paired cell. Part of the Move of a leaving cell."""

    type: ClassVar[str] = "rehome"
    homes: tuple[tuple[ExecutionId, int], ...]


@dataclass(frozen=True)
class Move(Action):
    """Bring `cell` into `role` (ROLLOUT or TRAINING). Answer: Moved, or CellLost at the deadline.

    It is meant for one `incarnation` (-1: none was reported yet, any): a world whose cell restarted since refuses it
    in silence, for the CellLost that follows withdraws it.
    """

    type: ClassVar[str] = "move"
    cell: int
    role: Role
    incarnation: int


@dataclass(frozen=True)
class Weigh(Action):
    """All N executions of `group` are settled, at least 2 not dropped: freeze, select, weigh. Answer: Weighed."""

    type: ClassVar[str] = "weigh"
    group: int


@dataclass(frozen=True)
class Void(Action):
    """`group` can never be trained; `reason` is one line. Its replacement goes out at the next boundary."""

    type: ClassVar[str] = "void"
    group: int
    reason: str


@dataclass(frozen=True)
class Evaluate(Action):
    """Executions 0..count-1 of `evaluation` exist from now on, of weights with `step` steps, published as `version`.

    They are queued before all others, and no burst begins until the last one is settled.
    """

    type: ClassVar[str] = "evaluate"
    evaluation: int
    count: int
    step: int
    version: int


@dataclass(frozen=True)
class Evaluated(Action):
    """The last execution of `evaluation` is settled: write down what it says of weights with `step` steps."""

    type: ClassVar[str] = "evaluated"
    evaluation: int
    step: int


@dataclass(frozen=True)
class OpenStep(Action):
    """Optimizer step `step` begins: the ledger is empty and open."""

    type: ClassVar[str] = "open_step"
    step: int


@dataclass(frozen=True)
class Admit(Action):
    """`group` belongs to `step`: its micro-steps become claimable. Answers: Backlog events."""

    type: ClassVar[str] = "admit"
    group: int
    step: int


@dataclass(frozen=True)
class CloseStep(Action):
    """Every micro-step of `step` is counted: apply the optimizer with scale 1/E. Answer: StepClosed."""

    type: ClassVar[str] = "close_step"
    step: int


@dataclass(frozen=True)
class Publish(Action):
    """The burst is over: give the core's weights, as `version`, to every rollout cell. Answer: Published.

    `step` = optimizer steps these weights contain. In a burst without weight the core itself may be rolling out.
    """

    type: ClassVar[str] = "publish"
    version: int
    step: int


ACTIONS: dict[str, type[Action]] = {
    a.type: a
    for a in (Dispatch, Place, Rehome, Move, Weigh, Void, Evaluate, Evaluated, OpenStep, Admit, CloseStep, Publish)
}
