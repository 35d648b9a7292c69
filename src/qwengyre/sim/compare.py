"""Policies side by side on the same executions: one result each, and for `async` the best split unless one is given."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from qwengyre.errors import ConfigError
from qwengyre.schedule.plan import Plan
from qwengyre.sim.executions import Drawn, Source, read_trace
from qwengyre.sim.policies import plan_of
from qwengyre.sim.run import Result, Watch, measure
from qwengyre.sim.workload import Workload

USUAL = ("elastic", "colocate", "async")


@dataclass(frozen=True)
class Question:
    """What is simulated: parameters, and executions from a seed, from a trace, or given."""

    workload: Workload
    seed: int = 0
    trace: Path | None = None
    given: Source | None = None

    @cached_property
    def recorded(self) -> Source | None:
        """The trace, read once. Raises ConfigError."""
        return read_trace(self.trace, self.workload, self.seed) if self.trace else None

    def executions(self, plan: Plan) -> Source:
        """The same for every policy."""
        return self.given or self.recorded or Drawn(self.workload, plan, self.seed)

    def run(self, kind: str, training: int = 1, watch: Watch | None = None) -> Result:
        """One policy. Raises ConfigError for a plan that cannot run."""
        plan = plan_of(self.workload, kind, training)
        return measure(kind, plan, self.workload, self.executions(plan), self.seed, watch)


@dataclass(frozen=True)
class Answer:
    """`label` is for people: for `async` it says the split, and how it was found."""

    result: Result
    label: str


def compare(
    question: Question, kinds: Sequence[str], training: int = 0, watch: Callable[[int], Watch] | None = None
) -> list[Answer]:
    """One answer a policy, in their order. `training` = a (0: the fastest of all); `watch(i)` sees the states of
    answer i. Raises ConfigError."""
    return [_answer(question, kind, training, watch(i) if watch else None) for i, kind in enumerate(kinds)]


def _answer(question: Question, kind: str, training: int, watch: Watch | None) -> Answer:
    if not kind.startswith("async"):
        return Answer(question.run(kind, watch=watch), kind)
    if training:
        return Answer(question.run(kind, training, watch), f"{kind} a={training}")
    best, splits = best_split(question, kind)
    result = question.run(kind, best, watch) if watch else splits[best]
    return Answer(result, f"{kind} a={best} (best)")


def best_split(question: Question, kind: str = "async") -> tuple[int, dict[int, Result]]:
    """The fastest a, and the result of each. Raises ConfigError where there is none."""
    cluster = question.workload.cluster
    splits = range(1, cluster.cells + (cluster.standalone > 0))
    if not splits:
        raise ConfigError(f"cluster.cells={cluster.cells}: {kind} needs a cell that trains and one that rolls out")
    results = {a: question.run(kind, a) for a in splits}
    return min(results, key=lambda a: results[a].hours), results
