"""One finished run for all tests that read one."""

from pathlib import Path

import pytest
from running import leftovers, qwengyre


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`qwengyre train examples/tiny.toml` once, for all tests that read a finished run; evaluated before and after."""
    run_dir = tmp_path_factory.mktemp("runs") / "tiny"
    evaluated = ("eval.before=true", "eval.after=true", "eval.count=3", "eval.samples=2")
    done = qwengyre("train", "examples/tiny.toml", "--run-dir", str(run_dir), *evaluated, "observe.tensorboard=true")
    assert done.returncode == 0, done.stdout + done.stderr
    assert leftovers(run_dir) == []
    return run_dir
