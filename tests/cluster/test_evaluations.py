"""What evaluations say: slots, what counts, what is compared, and the same again after a restart or a roll-back."""

import json
from pathlib import Path
from typing import Any

import pytest

from qwengyre.cluster.evaluations import Evaluations, Slots, held_out, kind_of
from qwengyre.schedule.actions import Evaluate
from qwengyre.schedule.events import Settled
from qwengyre.types import ExecutionId, Query, Verdict


def query(name: str, **metadata: Any) -> Query:
    return Query(name, "", "", "/app", "", "", limits=None, metadata=metadata)  # type: ignore[arg-type]


TASKS = (query("made/00000-copy"), query("made/00001-move"), query("made/00002-copy"))
SLOTS = Slots(TASKS, samples=2, greedy=True, temperature=0.7)


def evaluate(found: Evaluations, number: int, step: int, scores: list[float | None]) -> None:
    """All slots in order; None: dropped."""
    found.begin(Evaluate("", number, len(scores), step, step), at=10.0)
    for member, score in enumerate(scores):
        verdict = Verdict.DROPPED if score is None else Verdict.SCORED
        found.settle(Settled(0.0, ExecutionId.of_evaluation(number, member), verdict, score or 0.0))
    found.end(number, at=12.5)


BEFORE = [0.0, 0.5, 0.0, 0.5, 0.5, 1.0, 0.0, 0.0, 0.0]
AFTER = [0.5, 1.0, 1.0, 1.0, None, 1.0, 1.0, 0.5, 0.0]


def test_slots_are_samples_of_tasks_and_a_greedy_one_each() -> None:
    executions = [ExecutionId.of_evaluation(3, member) for member in range(len(SLOTS))]
    assert [SLOTS.query(e).name[-4:] for e in executions] == ["copy"] * 3 + ["move"] * 3 + ["copy"] * 3
    assert [SLOTS.is_greedy(e) for e in executions] == [False, False, True] * 3
    again = ExecutionId.of_evaluation(3, 5 + 2 * len(SLOTS))
    assert (SLOTS.query(again), SLOTS.is_greedy(again)) == (TASKS[1], True)
    sampled = Slots(TASKS, samples=1, greedy=False, temperature=1.0)
    assert [sampled.is_greedy(ExecutionId.of_evaluation(0, m)) for m in range(3)] == [False] * 3


def test_a_row_says_what_was_scored_and_never_takes_a_drop_for_a_zero(tmp_path: Path) -> None:
    found = Evaluations(tmp_path / "evals.jsonl", SLOTS)
    evaluate(found, 0, 4, AFTER)
    (row,) = [json.loads(line) for line in (tmp_path / "evals.jsonl").read_text().splitlines()]
    assert (row["step"], row["eval/tasks"], row["eval/dropped"], row["time/eval"]) == (4, 3, 1, 2.5)
    assert (row["eval/mean"], row["eval/n"]) == (0.8, 5)
    assert (row["eval/greedy/mean"], row["eval/greedy/n"]) == (pytest.approx(2 / 3, abs=1e-6), 3)
    assert [task["sampled"] for task in row["tasks"]] == [[0.5, 1.0], [1.0], [1.0, 0.5]]
    assert row["kinds"]["move"]["sampled"]["mean"] == 1.0
    assert row["kinds"]["copy"]["greedy"]["mean"] == 0.5


def test_what_ran_again_counts_once(tmp_path: Path) -> None:
    found = Evaluations(tmp_path / "evals.jsonl", SLOTS)
    found.begin(Evaluate("", 0, len(SLOTS), 0, 0), at=0.0)
    for member in range(len(SLOTS)):
        lost = member == 4
        verdict = Verdict.DROPPED if lost else Verdict.SCORED
        found.settle(Settled(0.0, ExecutionId.of_evaluation(0, member), verdict, 0.0 if lost else 1.0))
    found.settle(Settled(0.0, ExecutionId.of_evaluation(0, 4 + len(SLOTS)), Verdict.SCORED, 0.25))
    found.end(0, at=1.0)
    assert found.rows[0]["tasks"][1]["sampled"] == [1.0, 0.25]
    assert found.rows[0]["eval/dropped"] == 0


def test_before_after_and_the_difference_by_task_and_by_kind(tmp_path: Path) -> None:
    found = Evaluations(tmp_path / "evals.jsonl", SLOTS)
    assert held_out(found.rows, 2) is None
    evaluate(found, 0, 0, BEFORE)
    evaluate(found, 1, 1, BEFORE)
    half = held_out(found.rows, 2)
    assert half is not None
    assert (half["before"]["n"], half["after"], half["difference"]) == (6, None, None)
    evaluate(found, 2, 2, AFTER)
    whole = held_out(found.rows, 2)
    assert whole is not None
    assert {*whole["before"]} == {"mean", "low", "high", "n"}
    assert whole["before"]["mean"] == 0.25
    steps = [0.75 - 0.25, 1.0 - 0.5, 0.75 - 0.0]
    assert whole["difference"]["mean"] == pytest.approx(sum(steps) / 3, abs=1e-6)
    assert whole["greedy"]["difference"]["mean"] == pytest.approx(1 / 3, abs=1e-6)
    assert whole["dropped"] == [0, 1]
    assert whole["kinds"]["copy"]["difference"]["mean"] == pytest.approx((0.5 + 0.75) / 2)
    assert whole["kinds"]["move"]["greedy"]["after"]["mean"] == 1.0


def test_the_same_after_a_restart_and_less_after_a_roll_back(tmp_path: Path) -> None:
    path = tmp_path / "evals.jsonl"
    found = Evaluations(path, SLOTS)
    for number, step in enumerate((0, 2, 4)):
        evaluate(found, number, step, BEFORE)
    text = path.read_text()
    path.write_text(text + '{"torn')
    again = Evaluations(path, SLOTS)
    for number, step in enumerate((0, 2, 4)):  # a new control folds the journal
        evaluate(again, number, step, BEFORE)
    assert path.read_text() == text
    again.forget_after(2)
    assert [row["step"] for row in Evaluations(path, SLOTS).rows] == [0, 2]
    assert "tasks" not in again.heads[0]


def test_kinds_come_from_metadata_or_numbered_names() -> None:
    assert kind_of(query("a/00012-three-files")) == "three-files"
    assert kind_of(query("a/00012-x", kind="files")) == "files"
    assert kind_of(query("fix-config")) == "fix-config"
