"""One finished run for all tests that read one."""

from pathlib import Path

import pytest
from running import leftovers, qwengyre


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`qwengyre train examples/tiny.toml` once, for all tests that read a finished run."""
    run_dir = tmp_path_factory.mktemp("runs") / "tiny"
    done = qwengyre("train", "examples/tiny.toml", "--run-dir", str(run_dir))
    assert done.returncode == 0, done.stdout + done.stderr
    assert leftovers(run_dir) == []
    return run_dir
