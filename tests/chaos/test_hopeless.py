"""Parts that stay dead, or die all at once: the run goes on, ends, or exits 1 with one line that names them."""

import os
import time
from pathlib import Path

import pytest
from harm import Run, event

pytestmark = pytest.mark.chaos


def one_line(run: Run, says: str) -> None:
    assert run.end() == 1, run.said
    errors = [line for line in run.said.splitlines() if line.startswith("error:")]
    assert len(errors) == 1, run.said
    assert says in errors[0], errors
    assert "--resume" in errors[0]


def test_all_engines_die_at_once(tmp_path: Path) -> None:
    """They come back; no execution is lost."""
    with Run(tmp_path / "run", "run.steps=2", config="examples/elastic.toml") as run:
        run.wait_for_calls(6)
        run.kill("cell-1")
        run.kill("cell-0")
        run.check_whole(steps=2)
        assert run.verdicts() == {"scored": 32}
        assert run.harness_errors() == []
        run.check_harnesses()


def test_an_engine_that_never_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dead_engine.py").write_text("import os\n\n\ndef Engine(*_, **__):\n    os._exit(1)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Run(tmp_path / "run", "engine.kind=dead_engine:Engine") as run:
        one_line(run, "cell 0")


def test_a_box_that_dies_again_and_again(tmp_path: Path) -> None:
    with Run(tmp_path / "run", "run.steps=50", "rl.max_tokens=160") as run:
        run.wait_for(event("placed", 4))
        killed: set[int] = set()
        while run.is_alive():
            pid = run.process("box-0")["pid"]
            if pid not in killed:
                killed.add(pid)
                os.kill(pid, 9)
            time.sleep(0.1)
        one_line(run, "the box")


def test_a_verifier_that_never_answers(tmp_path: Path) -> None:
    """Every evaluation fails, so every execution is dropped, with a reason, and no step has weight. It ends."""
    with Run(tmp_path / "run", "scoring.timeout_s=0.01", "run.steps=2", "scoring.retries=1") as run:
        assert run.end() == 0, run.said
        assert set(run.verdicts()) == {"dropped"}
