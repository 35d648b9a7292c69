"""A run inside a Ray cluster that somebody else started, with its token, and one that has no room for it."""

import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from running import COMMAND, ROOT, leftovers, lines

pytestmark = pytest.mark.chaos

RAY = Path(sys.executable).with_name("ray")
PORT = 26399


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, str]]:
    """The environment of who may join it. Its processes carry a mark, by which they are ended."""
    folder, mark = Path(f"/tmp/joined-{secrets.token_hex(3)}"), secrets.token_hex(8)
    env = os.environ | {
        "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0", "MARK": mark,
    }  # fmt: skip
    words = ["start", "--head", "--port", str(PORT), "--num-cpus", "2", "--include-dashboard=false", "--temp-dir"]
    ports = ["--min-worker-port", "30000", "--max-worker-port", "30999"]
    subprocess.run([str(RAY), *words, str(folder), *ports], env=env, check=True, capture_output=True, timeout=120)
    try:
        yield env
    finally:
        for process in psutil.process_iter():
            try:
                ours = process.environ().get("MARK") == mark
            except (psutil.AccessDenied, psutil.NoSuchProcess):
                continue
            if ours:
                process.send_signal(signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def train(run_dir: Path, env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    words = ("train", "examples/tiny.toml", "run.steps=1", "--run-dir", str(run_dir), *words)
    return subprocess.run(
        [str(COMMAND), *words], cwd=ROOT, env=env, capture_output=True, text=True, timeout=150, check=False
    )


def one_line(done: subprocess.CompletedProcess[str], says: str) -> None:
    assert done.returncode == 2, done.stdout + done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert len(errors) == 1, done.stderr
    assert says in errors[0], errors


def test_a_run_joins_a_cluster(tmp_path: Path, cluster: dict[str, str]) -> None:
    done = train(tmp_path / "run", cluster, f"cluster.address=127.0.0.1:{PORT}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(lines(tmp_path / "run" / "metrics.jsonl")) == 1
    assert leftovers(tmp_path / "run") == []


def test_no_room_for_the_cells(tmp_path: Path, cluster: dict[str, str]) -> None:
    words = (f"cluster.address=127.0.0.1:{PORT}", "cells.count=3", "cluster.placement_s=3")
    one_line(train(tmp_path / "run", cluster, *words), "has no place for 3 cells")


def test_nothing_listens_at_the_address(tmp_path: Path, cluster: dict[str, str]) -> None:
    one_line(train(tmp_path / "run", cluster, "cluster.address=127.0.0.1:9"), "nothing listens there")
