"""One line a training step, computed from what happened, outside the rules. Names follow verl's habit."""

from dataclasses import dataclass, field
from typing import Any

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class GroupSummary:
    """What a metrics line needs of an admitted group. `scores` are of the executions that count in the baseline."""

    group: int
    dispatched_steps: int
    """v_d: steps contained in the weights published when the group was dispatched."""
    scores: tuple[float, ...]
    num_dropped: int
    trajectories: int
    targets: int
    """Selected trainable tokens."""
    calls: int


@dataclass
class StepRecord:
    """Everything of one optimizer step, gathered while it is open."""

    step: int
    version: int
    """The published version when it opened."""
    opened: float
    closed: float = 0.0
    groups: list[GroupSummary] = field(default_factory=list[GroupSummary])
    sums: dict[str, float] = field(default_factory=dict[str, float])
    optimizer: dict[str, float] = field(default_factory=dict[str, float])
    train_s: float = 0.0

    def admit(self, group: GroupSummary) -> None:
        """`group` belongs to this step."""
        self.groups.append(group)

    def add(self, sums: dict[str, float], seconds: float) -> None:
        """The sums of one counted micro-step, and how long its cell was busy with it."""
        self.train_s += seconds
        for key, value in sums.items():
            self.sums[key] = self.sums.get(key, 0.0) + value

    @property
    def num_executions(self) -> int:
        """E: settled executions of the step's groups that were not dropped."""
        return sum(len(g.scores) for g in self.groups)

    def row(self) -> dict[str, Any]:
        """The line of `metrics.jsonl`."""
        scores = [s for g in self.groups for s in g.scores]
        targets = max(self.sums.get("targets", 0.0), 1.0)
        staleness = [self.step - g.dispatched_steps for g in self.groups]
        return {
            "schema_version": SCHEMA_VERSION,
            "step": self.step,
            "version": self.version,
            "groups": [g.group for g in self.groups],
            "executions": len(scores),
            "executions/dropped": sum(g.num_dropped for g in self.groups),
            "reward/mean": sum(scores) / len(scores) if scores else 0.0,
            "reward/max": max(scores, default=0.0),
            "reward/live_groups": sum(len(set(g.scores)) > 1 for g in self.groups),
            "actor/grad_norm": self.optimizer.get("grad_norm", 0.0),
            "actor/learning_rate": self.optimizer.get("learning_rate", 0.0),
            "actor/optimizer_step": bool(self.optimizer),
            "mismatch_kl/mean": self.sums.get("mismatch_kl", 0.0) / targets,
            "clip_share/mean": self.sums.get("clipped", 0.0) / targets,
            "entropy/mean": self.sums.get("entropy", 0.0) / targets,
            "tokens/trained": int(self.sums.get("tokens", 0)),
            "tokens/targets": int(self.sums.get("targets", 0)),
            "calls": sum(g.calls for g in self.groups),
            "trajectories": sum(g.trajectories for g in self.groups),
            "staleness/max": max(staleness, default=0),
            "staleness/mean": sum(staleness) / len(staleness) if staleness else 0.0,
            "time/step": round(self.closed - self.opened, 3),
            "time/train": round(self.train_s, 3),
        }
