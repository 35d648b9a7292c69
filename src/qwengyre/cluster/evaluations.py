"""What evaluations are made of and what they say: slots -> tasks and temperatures, settlements -> a line of
`evals.jsonl`, lines -> `held_out` of `summary.json`. Made again from the journal at any time.
"""

import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from qwengyre import estimate
from qwengyre.cluster.folder import lines, mend
from qwengyre.execution.tasksets.base import TaskSet
from qwengyre.schedule.actions import Evaluate
from qwengyre.schedule.events import Settled
from qwengyre.types import ExecutionId, Query, Verdict

SCHEMA_VERSION = 1
Row = dict[str, Any]
Results = dict[int, tuple[Verdict, float]]
"""Slot -> its newest settlement."""


@dataclass(frozen=True)
class Slots:
    """`samples` slots a task at `temperature`, then a greedy one; member m of `of` slots has slot m % of."""

    tasks: TaskSet
    samples: int
    greedy: bool
    temperature: float

    @property
    def a_task(self) -> int:
        """Slots of one task."""
        return self.samples + self.greedy

    def __len__(self) -> int:
        """Slots of an evaluation."""
        return len(self.tasks) * self.a_task

    def query(self, execution: ExecutionId) -> Query:
        """The task."""
        return self.tasks[execution.member % len(self) // self.a_task]

    def is_greedy(self, execution: ExecutionId) -> bool:
        """Whether it is its task's greedy one."""
        return execution.member % len(self) % self.a_task == self.samples


@dataclass
class Evaluations:
    """Folds settlements; writes a row when an evaluation ends."""

    path: Path
    slots: Slots
    rows: list[Row] = field(default_factory=list[Row])
    _begun: dict[int, tuple[Evaluate, float]] = field(default_factory=dict[int, tuple[Evaluate, float]])
    _results: dict[int, Results] = field(default_factory=dict[int, Results])

    def __post_init__(self) -> None:
        """Take up the rows of an earlier control."""
        mend(self.path)
        self.rows = lines(self.path)

    @property
    def heads(self) -> list[Row]:
        """The rows without their tasks."""
        return [{name: value for name, value in row.items() if name != "tasks"} for row in self.rows]

    def begin(self, action: Evaluate, at: float) -> None:
        """An evaluation begins."""
        self._begun[action.evaluation] = action, at

    def settle(self, event: Settled) -> None:
        """One of its executions is settled. A later member of a slot replaces an earlier one, which was lost."""
        execution = event.execution
        results = self._results.setdefault(execution.evaluation, {})
        results[execution.member % len(self.slots)] = event.verdict, event.score

    def end(self, evaluation: int, at: float) -> None:
        """It is over: a line of `evals.jsonl`, unless it is there."""
        begun, since = self._begun[evaluation]
        if any(row["evaluation"] == evaluation for row in self.rows):
            return
        row = self._row(begun, self._results.pop(evaluation, {})) | {"time/eval": round(at - since, 3)}
        self.rows.append(row)
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def forget_after(self, step: int) -> None:
        """Steps after `step` are trained again: what was said of their weights goes."""
        if any(row["step"] > step for row in self.rows):
            self.rows = [row for row in self.rows if row["step"] <= step]
            self.path.write_text("".join(json.dumps(row) + "\n" for row in self.rows))

    def _row(self, begun: Evaluate, results: Results) -> Row:
        tasks = [self._task(index, results) for index in range(len(self.slots.tasks))]
        row: Row = {
            "schema_version": SCHEMA_VERSION,
            "evaluation": begun.evaluation,
            "step": begun.step,
            "version": begun.version,
            "eval/tasks": len(tasks),
            "eval/dropped": sum(task["dropped"] for task in tasks),
        }
        for kind in ("sampled", "greedy"):
            name = "eval" if kind == "sampled" else "eval/greedy"
            found = estimate.mean([task[kind] for task in tasks])
            row |= {f"{name}/{key}": value for key, value in _plain(found).items()}
        kinds = sorted({task["kind"] for task in tasks})
        return row | {"kinds": {kind: _of([t for t in tasks if t["kind"] == kind]) for kind in kinds}, "tasks": tasks}

    def _task(self, index: int, results: Results) -> Row:
        """One task's scores. What is dropped counts in no mean: it is no zero."""
        first, query = index * self.slots.a_task, self.slots.tasks[index]
        settled = {slot: results.get(slot, (Verdict.DROPPED, 0.0)) for slot in range(first, first + self.slots.a_task)}
        scores = {slot: score for slot, (verdict, score) in settled.items() if verdict is not Verdict.DROPPED}
        at = first + self.slots.samples
        return {
            "task": query.name,
            "kind": kind_of(query),
            "sampled": [score for slot, score in scores.items() if slot < at],
            "greedy": [score for slot, score in scores.items() if slot >= at],
            "dropped": len(settled) - len(scores),
        }


def kind_of(query: Query) -> str:
    """What a task is of: `kind` in its metadata, else its name without the folder and number before it."""
    named = query.metadata.get("kind")
    return str(named) if named else re.sub(r"^\d+-", "", query.name.rpartition("/")[2])


def held_out(rows: list[Row], steps: int) -> Row | None:
    """Before and after training, and the difference, task by task; None without any evaluation.

    Of the samples; the same of the greedy ones under `greedy`, and of each kind of task under `kinds`.
    """
    before = next((row for row in rows if row["step"] == 0), None)
    after = next((row for row in rows if row["step"] == steps > 0), None)
    if before is None and after is None:
        return None
    kinds = sorted({kind for row in (before, after) if row for kind in row["kinds"]})
    return _compare(before, after) | {"kinds": {kind: _compare(before, after, kind) for kind in kinds}}


def _compare(before: Row | None, after: Row | None, kind: str | None = None) -> Row:
    found: dict[str, Row] = {}
    for what in ("sampled", "greedy"):
        old, new = ({name: t[what] for name, t in _tasks(row, kind).items()} for row in (before, after))
        found[what] = {
            "before": _plain(estimate.mean(list(old.values()))) or None,
            "after": _plain(estimate.mean(list(new.values()))) or None,
            "difference": _plain(estimate.difference(old, new)) or None,
        }
    dropped = [sum(t["dropped"] for t in _tasks(row, kind).values()) for row in (before, after)]
    return found["sampled"] | {"greedy": found["greedy"], "dropped": dropped}


def _tasks(row: Row | None, kind: str | None) -> dict[str, Row]:
    """By place and name: names alone may not be unique."""
    tasks = enumerate(row["tasks"]) if row else ()
    return {f"{place} {task['task']}": task for place, task in tasks if kind in (None, task["kind"])}


def _of(tasks: list[Row]) -> Row:
    return {what: _plain(estimate.mean([t[what] for t in tasks])) or None for what in ("sampled", "greedy")}


def _plain(found: estimate.Estimate | None) -> Row:
    return {k: round(v, 6) for k, v in asdict(found).items()} if found else {}
