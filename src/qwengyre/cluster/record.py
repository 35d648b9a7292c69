"""One line a training step (names follow verl's habit), and one a move of a cell: what happened, outside the rules."""

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
    flat_tokens: int = 0
    """Of the trained trajectories, each counted wholly: what would be trained if none shared a prefix."""
    lengths: tuple[int, ...] = ()
    """Sampled tokens of each execution that called the model and counts."""
    trained_lengths: tuple[int, ...] = ()
    """The same of those that train: their advantage is not 0."""


@dataclass
class MoveRecord:
    """One transition of a cell, from the first phase to the last. Times in seconds of the run."""

    cell: int
    incarnation: int
    role: str
    """What was asked: rollout or training."""
    at: float
    live: int
    """Unfinished executions at home here when it began: re-homed, or suspended with the cell."""
    outcome: str = ""
    """What became of it: the role, the other role (compensated), or lost."""
    failed: str = ""
    """The phase that failed, and why."""
    calls: int = 0
    """Model calls interrupted here; they continue at their new place."""
    tokens: int = 0
    """Their output tokens so far, which they keep."""
    kv_moved: int = 0
    """Tokens whose keys and values went to the new place."""
    kv_recomputed: int = 0
    """Tokens of interrupted calls that their new place computes again."""
    phases: dict[str, float] = field(default_factory=dict[str, float])

    def row(self) -> dict[str, Any]:
        """The line of `moves.jsonl`."""
        return {
            "schema_version": SCHEMA_VERSION,
            "cell": self.cell,
            "incarnation": self.incarnation,
            "role": self.role,
            "outcome": self.outcome,
            "failed": self.failed,
            "at": round(self.at, 3),
            "seconds": round(sum(self.phases.values()), 3),
            "phases": {name: round(seconds, 3) for name, seconds in self.phases.items()},
            "live_executions": self.live,
            "calls_continued": self.calls,
            "tokens_kept": self.tokens,
            "kv_moved": self.kv_moved,
            "kv_recomputed": self.kv_recomputed,
        }


MOVE_SUMS = ("calls_continued", "tokens_kept", "kv_moved", "kv_recomputed")


def sum_moves(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What `summary.json` says of a run's moves."""
    sums = {name: sum(row[name] for row in rows) for name in MOVE_SUMS}
    failed = sum(row["outcome"] != row["role"] for row in rows)
    return {"moves": len(rows), "failed": failed, **sums, "seconds": round(sum(row["seconds"] for row in rows), 3)}


def _mean(values: list[int]) -> float:
    return sum(values) / len(values) if values else 0.0


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

    def _effective(self) -> float:
        """Effective sample size as a share of the targets: 1 when all ratios are equal."""
        squares = self.sums.get("targets", 0.0) * self.sums.get("ratio_squared", 0.0)
        return self.sums.get("ratio", 0.0) ** 2 / squares if squares else 1.0

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
            "effective_sample_size/mean": self._effective(),
            "entropy/mean": self.sums.get("entropy", 0.0) / targets,
            **({"reference_kl/mean": self.sums["reference_kl"] / targets} if "reference_kl" in self.sums else {}),
            "tokens/trained": int(self.sums.get("tokens", 0)),
            "tokens/flat": sum(g.flat_tokens for g in self.groups),
            "tokens/targets": int(self.sums.get("targets", 0)),
            "length/mean": _mean([n for g in self.groups for n in g.lengths]),
            "length/trained": _mean([n for g in self.groups for n in g.trained_lengths]),
            "calls": sum(g.calls for g in self.groups),
            "trajectories": sum(g.trajectories for g in self.groups),
            "staleness/max": max(staleness, default=0),
            "staleness/mean": sum(staleness) / len(staleness) if staleness else 0.0,
            "time/step": round(self.closed - self.opened, 3),
            "time/train": round(self.train_s, 3),
        }
