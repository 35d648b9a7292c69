"""Each process of a run with one cell dies at a named point: the run goes on, or says in one line why it cannot."""

import time
from pathlib import Path

import pytest
from harm import Run, action, event

pytestmark = pytest.mark.chaos

LONG = ("rl.max_tokens=160", "run.steps=2")
"""Calls long enough to be cut in the middle."""


def test_gateway_dies_with_live_calls(tmp_path: Path) -> None:
    """Fault point: 8 harnesses wait for their answers. Each sees one dropped connection, and asks again."""
    with Run(tmp_path / "run", *LONG) as run:
        run.wait_for_calls(6)
        killed = run.kill("gateway-0")
        run.check_whole(steps=2)
        assert run.process("gateway-0")["pid"] != killed
        assert run.verdicts() == {"scored": 16}, "no execution is lost with a gateway"
        run.check_harnesses()
        errors = run.harness_errors()
        assert errors, "the fault hit nobody: this test shows nothing"
        assert all("HTTP" not in error for error in errors), errors


def test_gateway_dies_during_a_drain(tmp_path: Path) -> None:
    """Fault point: the core was asked to go to training, and its engine is being drained."""
    with Run(tmp_path / "run") as run:
        run.wait_for(action("move", role="training"))
        run.kill("gateway-0")
        run.check_whole(steps=2)
        assert run.verdicts() == {"scored": 16}
        run.check_harnesses()


def test_box_dies_with_live_executions(tmp_path: Path) -> None:
    """Its executions are lost, dropped, and never run again; their groups are void and replaced at the boundary."""
    with Run(tmp_path / "run", *LONG, "run.steps=3") as run:
        run.wait_for_calls(6)
        run.kill("box-0")
        assert run.end() == 0, run.said
        assert run.verdicts()["dropped"] >= 1, run.verdicts()
        lost = [e["event"]["execution"] for e in run.journal() if e["event"].get("ending") == "lost"]
        assert len(lost) == run.verdicts()["dropped"]
        started = [e["event"]["execution"] for e in run.journal() if e["event"]["type"] == "placed"]
        assert all(started.count(execution) == 1 for execution in lost), "never re-run"
        assert run.verdicts()["scored"] >= 8, "the steps after it are whole"


@pytest.mark.parametrize("point", ["calls", "move", "close_step", "publish"])
def test_control_dies_with_actions_asked(tmp_path: Path, point: str) -> None:
    """Its successor replays the journal; executions go on in the box and are taken up by name."""
    points = {
        "calls": lambda run: run.wait_for_calls(6),
        "move": lambda run: run.wait_for(action("move", role="training")),
        "close_step": lambda run: run.wait_for(action("close_step")),
        "publish": lambda run: run.wait_for(action("publish")),
    }
    with Run(tmp_path / "run", *(LONG if point == "calls" else ())) as run:
        points[point](run)
        killed = run.kill("control")
        run.check_whole(steps=2)
        assert run.process("control")["pid"] != killed
        assert run.verdicts() == {"scored": 16}, "no execution is lost with control"
        assert run.harness_errors() == []
        run.check_harnesses()
        assert any(e["event"]["type"] == "rolled_back" for e in run.journal())


@pytest.mark.parametrize("point", ["calls", "backlog", "step_closed", "published"])
def test_core_dies(tmp_path: Path, point: str) -> None:
    """With live calls; with accumulated gradients; with new weights that nobody has; right after a checkpoint."""
    points = {
        "calls": lambda run: run.wait_for_calls(6),
        "backlog": lambda run: run.wait_for(event("backlog", counted=1)),
        "step_closed": lambda run: run.wait_for(event("step_closed")),
        "published": lambda run: run.wait_for(event("published")),
    }
    words = LONG if point == "calls" else ("trainer.microstep_tokens=64",)
    with Run(tmp_path / "run", *words) as run:
        points[point](run)
        run.kill("cell-0")
        run.check_whole(steps=2)
        assert run.process("cell-0")["incarnation"] == 1
        assert run.verdicts() == {"scored": 16}, "no execution is lost with the core"
        assert run.harness_errors() == []
        run.check_harnesses()
        back = [e["event"]["step"] for e in run.journal() if e["event"]["type"] == "rolled_back"]
        assert back == [1 if point == "published" else 0]


def test_gcs_dies(tmp_path: Path) -> None:
    """The run cannot go on: exit 1 within 30 s, one line, before Ray aborts every process by itself."""
    with Run(tmp_path / "run", *LONG, "run.steps=40") as run:
        run.wait_for(event("placed", 8))
        run.kill("gcs_server")
        since = time.monotonic()
        assert run.end(60) == 1, run.said
        assert time.monotonic() - since < 30
        errors = [line for line in run.said.splitlines() if line.startswith("error:")]
        assert len(errors) == 1, run.said
        assert "GCS" in errors[0]
