"""An evaluation is cut in its middle: by the core's death it loses nothing, by the command's nothing for good."""

import time
from pathlib import Path

import pytest
from harm import Run, action
from running import leftovers, lines, qwengyre, wait_until

pytestmark = pytest.mark.chaos

EVAL = ("eval.before=true", "eval.count=6", "eval.samples=2", "cells.executions=8", "rl.max_tokens=160")


def test_core_dies_in_an_evaluation(tmp_path: Path) -> None:
    """It serves the same weights again: executions wait in the gateway, and the evaluation goes on."""
    with Run(tmp_path / "run", *EVAL) as run:
        run.wait_for(action("evaluate"))
        run.wait_for_calls(4)
        run.kill("cell-0")
        run.check_whole(steps=2)
        assert run.verdicts() == {"scored": 16 + 18}
        (row,) = lines(tmp_path / "run" / "evals.jsonl")
        assert (row["eval/n"], row["eval/greedy/n"], row["eval/dropped"]) == (12, 6, 0)
        begun = [a for entry in run.journal() for a in entry["actions"] if a["type"] == "evaluate"]
        assert len(begun) == 1


def test_the_command_dies_in_an_evaluation(tmp_path: Path) -> None:
    """What ran is lost, and runs again under new names; what was scored stays, and nothing is evaluated twice."""
    run_dir = tmp_path / "run"
    with Run(run_dir, *EVAL, "run.steps=1") as run:
        run.wait_for(action("evaluate"))
        run.wait_for_calls(4)
        time.sleep(0.5)
    wait_until(lambda: not leftovers(run_dir), 60, "something of the run is left")
    done = qwengyre("train", "examples/tiny.toml", *EVAL, "run.steps=1", "--run-dir", str(run_dir), "--resume")
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = lines(run_dir / "evals.jsonl")
    assert (row["eval/n"], row["eval/greedy/n"], row["eval/dropped"]) == (12, 6, 0)
    scores = {line["execution"]: line for line in lines(run_dir / "scores.jsonl")}
    lost = [name for name, line in scores.items() if line["verdict"] == "dropped"]
    assert lost, "the fault hit nobody: this test shows nothing"
    for name in lost:
        again = f"eval0-{int(name.partition('-')[2]) + 18}"
        assert scores[again]["verdict"] == "scored"
        assert scores[again]["task"] == scores[name]["task"]
