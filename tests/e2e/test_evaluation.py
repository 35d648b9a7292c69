"""Evaluations of a finished run: their executions are real, of one version, and in no step; and `qwengyre eval`."""

import json
from pathlib import Path
from typing import Any

import pytest
from running import leftovers, lines, qwengyre

from qwengyre.cluster.evaluations import held_out
from qwengyre.gateway.journal import read_calls
from qwengyre.types import ExecutionId

pytestmark = pytest.mark.e2e


def greedy(row: dict[str, Any]) -> dict[str, list[float]]:
    return {task["task"]: task["greedy"] for task in row["tasks"]}


def test_before_and_after_are_of_one_version_each_at_their_own_temperature(tiny_run: Path) -> None:
    found: dict[int, set[tuple[int, float]]] = {}
    for path in (tiny_run / "calls").glob("eval*.calls"):
        execution, log = ExecutionId.parse(path.stem), read_calls(path)
        assert log.sealed
        for call in log.calls:
            assert call.temperature == (0.0 if execution.member % 3 == 2 else 1.0)
            found.setdefault(execution.evaluation, set()).update((s.version, call.temperature) for s in call.stretches)
    assert found == {0: {(0, 0.0), (0, 1.0)}, 1: {(2, 0.0), (2, 1.0)}}


def test_what_the_summary_says_is_what_was_scored(tiny_run: Path) -> None:
    rows = lines(tiny_run / "evals.jsonl")
    assert [(row["step"], row["version"], row["eval/n"], row["eval/greedy/n"]) for row in rows] == [
        (0, 0, 6, 3),
        (2, 2, 6, 3),
    ]
    scores = {line["execution"]: line for line in lines(tiny_run / "scores.jsonl")}
    for number, row in enumerate(rows):
        for place, task in enumerate(row["tasks"]):
            own = [scores[f"eval{number}-{3 * place + sample}"] for sample in range(3)]
            assert {line["task"] for line in own} == {task["task"]}
            assert [line["score"] for line in own] == [*task["sampled"], *task["greedy"]]
    summary = json.loads((tiny_run / "summary.json").read_text())
    assert summary["held_out"] == held_out(rows, 2)
    assert summary["executions"]["scored"] == 16, "an evaluation is in no sum of training"
    trained = {line["task"] for name, line in scores.items() if ExecutionId.parse(name).evaluation < 0}
    assert len(trained) == 4
    assert list((tiny_run / "tensorboard").iterdir())


def test_eval_of_the_checkpoint_says_the_same_greedily(tiny_run: Path, tmp_path: Path) -> None:
    run_dir, model = tmp_path / "eval", tiny_run / "checkpoints" / "step-000002"
    words = (f"model.name={model}", "eval.count=3", "eval.samples=1", "policy.kind=colocate")
    done = qwengyre("eval", "examples/tiny.toml", *words, "--json", "--run-dir", str(run_dir))
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert {task["task"]: task["greedy"] for task in report["tasks"]} == greedy(lines(tiny_run / "evals.jsonl")[-1])
    assert (report["n"], report["greedy"]["n"], report["model"]) == (3, 3, str(model))
    assert 0 <= report["low"] <= report["mean"] <= report["high"] <= 1
    assert "before training" in done.stderr
    assert leftovers(run_dir) == []
    again = qwengyre("eval", "examples/tiny.toml", *words, "--run-dir", str(run_dir))
    assert (again.returncode, again.stderr.count("\n")) == (2, 1), "the folder holds a run"
