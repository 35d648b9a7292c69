"""The plan of a run: the paper's letters, and the settings that make a policy. Nothing here changes during a run."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, Self

from qwengyre.errors import ConfigError, nearest


class When(StrEnum):
    """When the next cell (in lockstep: all of them) may be lent, if there is data that nobody has claimed."""

    ROOM = "room"
    """w <= C_R - C_e: the unfinished executions fit into the cells that stay, and move there. The paper's rule."""
    ROOM_OR_BURST = "room_or_burst"
    """As ROOM, or as BURST."""
    STEP = "step"
    """The open step has all its groups. What is live then is suspended in place: it keeps its home, its calls wait."""
    BURST = "burst"
    """The burst has all its groups; what is live then is look-ahead, and suspended in place."""
    DRAINED = "drained"
    """As BURST, and nothing is live."""
    SHARE = "share"
    """Data of enough groups wait (`Policy.share`), or the open step has all its groups. Executions move to the cells
    that stay as far as there is room; the rest is suspended in place until there is."""


@dataclass(frozen=True)
class Policy:
    """How cells move, as settings. A training prefix holds at least `least` and at most `most` cells (None: all).

    `lockstep`: all cells that may be lent move at once, instead of one at a time.
    `share`: for When.SHARE, how much of a step's groups is enough.
    `gate`: lend a further cell only if so many micro-steps wait for each that trains already: executions that have
    their cells to themselves are faster, and moved less often.
    `streaming`: a group enters its step as soon as it is ready; otherwise a step's groups enter together.
    """

    least: int = 0
    most: int | None = None
    lockstep: bool = False
    when: When = When.ROOM
    share: float = 0.0
    gate: float = 0.0
    streaming: bool = True

    @staticmethod
    def named(kind: str, training: int = 1) -> "Policy":
        """A policy by its name (`NAMES`); `training` = a, cells 0..a-1 of `async` always train. Raises ConfigError."""
        if kind not in NAMES:
            raise ConfigError(f"policy.kind='{kind}' is no policy: {nearest(kind, list(NAMES))}")
        policy = NAMES[kind]
        return replace(policy, least=training, most=training) if kind.startswith("async") else policy


NAMES: Mapping[str, Policy] = {
    "elastic": Policy(),
    "gyre": Policy(gate=1.0),
    "async": Policy(streaming=False),
    "async-streaming": Policy(),
    "colocate": Policy(lockstep=True, when=When.BURST, streaming=False),
    "colocate-step": Policy(lockstep=True, when=When.STEP, streaming=False),
    "colocate-drain": Policy(lockstep=True, when=When.DRAINED, streaming=False),
    "colocate-streaming": Policy(lockstep=True, when=When.ROOM_OR_BURST),
    "at-once": Policy(lockstep=True, when=When.SHARE, share=0.3),
}
"""The policies that have a name, as settings. `elastic` is the paper's rule, `gyre` ours (docs/decisions/gyre.md).
`at-once` lends as hybrid replicas are lent elsewhere: all together, when three tenths of a step's groups wait."""


@dataclass(frozen=True)
class Evaluations:
    """When published weights are evaluated: `count` executions, at boundaries of bursts; 0: never.

    `before` the first step, at the first boundary after each `every` steps (0: not), and `after` the last step.
    """

    count: int = 0
    every: int = 0
    before: bool = False
    after: bool = False

    def due(self, step: int, steps: int, newest: int) -> bool:
        """At the boundary of `step` of `steps`? `newest` is the step of the newest evaluation, -1: none."""
        if not self.count or step <= newest:
            return False
        if step == 0:
            return self.before
        return (step == steps and self.after) or (self.every > 0 and step // self.every > max(newest, 0) // self.every)

    def left(self, step: int, steps: int, newest: int) -> int:
        """How many are still to begin at `step`, if a burst is a step: for people."""
        left = 0
        for later in range(step, steps + 1):
            if self.due(later, steps, newest):
                left, newest = left + 1, later
        return left


@dataclass(frozen=True)
class Plan:
    """K elastic cells (0 is the core), S standalone ones after them; B groups a step, N executions a group.

    `capacity` = C_e in executions, until a cell reports its own. `steps` = 0 is a plan of one evaluation. Raises
    ConfigError for a plan that cannot run.
    """

    cells: int
    groups_per_step: int
    group_size: int
    steps: int
    capacity: int
    standalone: int = 0
    mu: int = 1
    phi: int = 0
    slack: int = 0
    policy: Policy = Policy()
    evaluations: Evaluations = Evaluations()

    def __post_init__(self) -> None:
        """Refuse what cannot run, in one line."""
        for name, least in (("cells", 1), ("groups_per_step", 1), ("group_size", 2), ("capacity", 1)):
            _at_least(name, getattr(self, name), least)
        for name, least in (("standalone", 0), ("mu", 1), ("phi", 0), ("slack", 0)):
            _at_least(name, getattr(self, name), least)
        _at_least("steps", self.steps, 0 if self.evaluations.before and self.evaluations.count else 1)
        if self.policy.gate < 0:
            raise ConfigError(f"policy.gate={self.policy.gate}: give at least 0 micro-steps a training cell")
        if not 0 <= self.policy.share <= 1:
            raise ConfigError(f"policy.share={self.policy.share}: give a share of a step's groups, 0 to 1")
        least, most = self.policy.least, self.most_training
        if not 0 <= least <= most <= self.cells or most < 1:
            raise ConfigError(
                f"policy: {least} to {most} training cells of {self.cells}: give 0 <= least <= most <= cells"
            )
        if least == self.cells and not self.standalone:
            raise ConfigError(f"policy: all {self.cells} cells always train, none rolls out: add a cell or train fewer")

    @classmethod
    def for_policy(cls, kind: str, *, training: int = 1, **letters: Any) -> Self:
        """A plan whose policy has a name; `training` = a, the cells of `async` that always train."""
        return cls(**letters, policy=Policy.named(kind, training))

    @property
    def num_cells(self) -> int:
        """K + S."""
        return self.cells + self.standalone

    @property
    def most_training(self) -> int:
        """Longest training prefix."""
        return self.cells if self.policy.most is None else self.policy.most

    @property
    def depth(self) -> int:
        """Qb = (phi + mu) B: groups dispatched and not yet in a step, right after a boundary's dispatch."""
        return (self.phi + self.mu) * self.groups_per_step

    @cached_property
    def max_staleness(self) -> int:
        """Largest d = s - v_d of any group in any step."""
        return self.phi + self.mu - 1 + self.slack

    def deadline(self, born: int) -> int:
        """The last step that a group with v_d = `born` may enter."""
        return min(born + self.max_staleness, self.steps - 1)


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigError(f"{name}={value}: give at least {least}")
