"""What the scheduler knows, frozen. `step` makes a new one from an event; nothing is hidden anywhere else.

Maps are persistent (`immutables.Map`): a new state shares all but a path of them with the old one. Per-execution
counts stand ready (homes a cell, groups a cohort): no rule walks over executions, except when cells are lost or lent.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from immutables import Map

from qwengyre.schedule.actions import Action
from qwengyre.schedule.cells import Cell as Cell
from qwengyre.schedule.cells import Cells as Cells
from qwengyre.schedule.frozen import Frozen
from qwengyre.schedule.plan import Evaluations as Evaluations
from qwengyre.schedule.plan import Plan as Plan
from qwengyre.schedule.plan import Policy as Policy
from qwengyre.types import ExecutionId, Role

NOWHERE = -1
"""The home of an execution whose cell was lost, until there is room elsewhere."""


class Phase(StrEnum):
    """Where the burst stands."""

    BEFORE = "before"
    """The run has not started."""
    EVALUATING = "evaluating"
    """A boundary waits: the published weights are evaluated, no cell trains."""
    OPEN = "open"
    """A step is open: groups enter it, cells train it."""
    CLOSING = "closing"
    """The optimizer was asked for."""
    ENDING = "ending"
    """The burst's last step is closed; cells in transit are awaited."""
    PUBLISHING = "publishing"
    """New weights are on their way to the rollout cells."""
    DONE = "done"


class Stage(StrEnum):
    """The life of a group. ROLLING -> WEIGHING -> READY -> ADMITTED, or VOID."""

    ROLLING = "rolling"
    WEIGHING = "weighing"
    READY = "ready"
    ADMITTED = "admitted"
    VOID = "void"


class Life(StrEnum):
    """The life of an execution after the queue. A settled one leaves the state: its group counts it."""

    PLACING = "placing"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True)
class Execution(Frozen):
    """A placed execution that is not settled. `home` is a cell or NOWHERE; `since` = when it was placed."""

    life: Life
    home: int
    since: float


@dataclass(frozen=True)
class Group(Frozen):
    """`born` = v_d, steps contained in the weights it was dispatched with; `step` = -1 until it is in one.

    `order` numbers the groups in the order in which they became ready.
    """

    born: int
    stage: Stage = Stage.ROLLING
    settled: int = 0
    dropped: int = 0
    micro_steps: int = 0
    order: int = -1
    step: int = -1


@dataclass(frozen=True)
class Evaluation(Frozen):
    """The evaluation in progress, of weights with `step` steps.

    Members 0..count-1 have a slot each (a sample of a task). When an execution is lost (its box died, or the run was
    interrupted), its slot runs again as member + count: member m is always of slot m % count.
    """

    number: int
    step: int
    count: int
    unsettled: int
    placed: int = 0
    """Members below `count` that left the queue, in order."""
    again: tuple[int, ...] = ()
    """Members queued behind them."""

    @property
    def queued(self) -> int:
        """Executions that were never placed."""
        return self.count - self.placed + len(self.again)


@dataclass(frozen=True)
class Asked:
    """An action that was asked and not answered, since when."""

    action: Action
    at: float


@dataclass(frozen=True)
class State(Frozen):
    """The whole scheduler. Steps are counted from 0: `step` is also the number of finished steps."""

    plan: Plan
    cells: Cells
    at: float = 0.0
    """Time of the newest event, seconds of the run."""
    phase: Phase = Phase.BEFORE
    core_lost: bool = False
    """The core died: it stays LOST, and nothing is lent, closed or published, until a RolledBack."""

    # executions, numbered group * N + member in the order of the queue
    started: int = 0
    """p(t): harnesses begun."""
    ended: int = 0
    """f(t): harnesses over."""
    next_place: int = 0
    """The first number still in the queue, which reaches to d(t)."""
    executions: Map[ExecutionId, Execution] = field(default_factory=Map[ExecutionId, Execution])
    homeless: Map[ExecutionId, bool] = field(default_factory=Map[ExecutionId, bool])
    """Placed, unfinished, and without a home since their cell was lost."""

    # groups
    next_group: int = 0
    groups: Map[int, Group] = field(default_factory=Map[int, Group])
    cohorts: Map[int, int] = field(default_factory=Map[int, int])
    """v_d -> groups dispatched with it that are in no step and not void."""
    ready: tuple[int, ...] = ()
    """Groups in READY, in the order in which they became so."""
    next_order: int = 0

    # evaluations, whose executions are in no group
    evaluation: Evaluation | None = None
    next_evaluation: int = 0
    evaluated: int = -1
    """Steps in the newest weights that were evaluated (or are now), -1: none."""
    visitors: int = 0
    """Executions of evaluations that are placed and unfinished, also of one that a roll-back gave up."""

    # the burst, and its open step
    burst: int = 0
    """The burst's first step: what the published weights contain."""
    step: int = 0
    admitted: int = 0
    """Groups in the open step."""
    expected: int = 0
    """Their micro-steps."""
    pending: int = 0
    claimed: int = 0
    counted: int = 0
    """The ledger's words: micro-steps nobody has claimed, claimed, and counted at the core."""

    # minted
    version: int = 0
    """The published weights."""
    next_version: int = 1
    """Never reused, also after a roll-back."""
    next_action: int = 0
    asked: Map[str, Asked] = field(default_factory=Map[str, Asked])
    """What was asked and not answered, by what it is about ("place 3-1", "move 2", "close")."""

    @property
    def done(self) -> bool:
        """The last step's weights are published."""
        return self.phase is Phase.DONE

    @property
    def finished_steps(self) -> int:
        """Optimizer steps that the core's weights contain."""
        return self.step

    @property
    def burst_end(self) -> int:
        """The step after the burst's last one."""
        return min(self.burst + self.plan.mu, self.plan.steps)

    @property
    def dispatched(self) -> int:
        """d(t), executions."""
        return self.next_group * self.plan.group_size

    @property
    def queued(self) -> int:
        """Never placed: dispatched ones, and those of an evaluation."""
        return self.dispatched - self.next_place + (self.evaluation.queued if self.evaluation else 0)

    @property
    def waterlevel(self) -> int:
        """w(t) = d(t) - f(t): dispatched and unfinished, the queue included; and those of evaluations."""
        evaluation = self.visitors + (self.evaluation.queued if self.evaluation else 0)
        return self.dispatched - self.ended + evaluation

    @property
    def outstanding(self) -> int:
        """Groups dispatched, in no step, not void: never above Qb right after a dispatch."""
        return sum(self.cohorts.values())

    @property
    def slots(self) -> int:
        """Groups that the open step still takes if enough come."""
        return self.plan.groups_per_step - self.admitted

    @property
    def room(self) -> int:
        """Groups that the open step still waits for: void ones made it smaller. 0 = the step is full."""
        return min(self.slots, self.released)

    @property
    def released(self) -> int:
        """Groups in no step and not void that may enter the open step: after a roll-back not all."""
        return sum(count for born, count in self.cohorts.items() if born <= self.step)

    @property
    def trained(self) -> bool:
        """The open step is full, and the ledger counted every micro-step of its groups."""
        return self.room == 0 and self.pending + self.claimed == 0 and self.counted >= self.expected

    @property
    def rollout(self) -> tuple[int, ...]:
        """Cells that take executions: in rollout, and not on their way to train for good."""
        rollout, least = self.cells.formation.rollout, self.plan.policy.least
        return tuple(i for i in rollout if i >= least) if least else rollout

    @property
    def rollout_capacity(self) -> int:
        """C_R(t), executions."""
        if self.plan.policy.least:
            return sum(self.cells[i].capacity for i in self.rollout)
        return self.cells.formation.capacity

    @property
    def training(self) -> tuple[int, ...]:
        """The training prefix: cells that train or are on their way to."""
        return self.cells.formation.training

    @property
    def in_transit(self) -> tuple[int, ...]:
        """Cells between two roles."""
        formation = self.cells.formation
        return tuple(sorted(formation.to_training + formation.to_rollout))

    @property
    def roles(self) -> dict[int, Role]:
        """Cell -> role."""
        return {i: cell.role for i, cell in enumerate(self.cells)}

    def number(self, execution: ExecutionId) -> int:
        """Its place in the order of all executions."""
        return execution.group * self.plan.group_size + execution.member

    def execution(self, number: int) -> ExecutionId:
        """Inverse of `number`."""
        return ExecutionId(*divmod(number, self.plan.group_size))
