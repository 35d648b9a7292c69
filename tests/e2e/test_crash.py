"""A run that is killed leaves nothing behind, and its resume trains each query once or drops it with a reason."""

import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest
from running import COMMAND, ROOT, kill_group, leftovers, lines, qwengyre, wait_until

pytestmark = pytest.mark.e2e

CONFIG = ("examples/tiny.toml", "run.steps=3", "rl.group_size=3")


def started(run_dir: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [str(COMMAND), "train", *CONFIG, "--run-dir", str(run_dir)],
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip


def trained(run_dir: Path) -> Counter[int]:
    """How often each group is in a step that counts."""
    return Counter(group for row in lines(run_dir / "metrics.jsonl") for group in row["groups"])


@pytest.mark.parametrize("moment", ["placed", pytest.param("settled", marks=pytest.mark.chaos), "step_closed"])
def test_kill_and_resume(tmp_path: Path, moment: str) -> None:
    """Fault point: SIGKILL of the command, at a random delay after the first event of the named kind."""
    run_dir = tmp_path / "run"
    process = started(run_dir)
    journal = run_dir / "journal.jsonl"
    wait_until(lambda: journal.exists() and f'"{moment}"' in journal.read_text(), 120, moment)
    time.sleep(random.random())
    kill_group(process)
    wait_until(lambda: not leftovers(run_dir), 60, "processes, cgroups or folders of the run are left")
    done = qwengyre("train", *CONFIG, "--run-dir", str(run_dir), "--resume")
    assert done.returncode == 0, done.stdout + done.stderr
    assert leftovers(run_dir) == []
    assert [row["step"] for row in lines(run_dir / "metrics.jsonl")] == [0, 1, 2]
    counts = trained(run_dir)
    assert set(counts.values()) <= {1}, counts
    scores = lines(run_dir / "scores.jsonl")
    assert len({s["execution"] for s in scores}) == len(scores), "no execution settles twice"
    groups = {int(s["execution"].split("-")[0]) for s in scores}
    for group in groups - set(counts):
        reasons = [s["reason"] for s in scores if s["execution"].startswith(f"{group}-") and s["verdict"] == "dropped"]
        assert len(reasons) >= 2, f"group {group} is neither trained nor dropped"
        assert all(reasons)
    versions = [row["version"] for row in lines(run_dir / "metrics.jsonl")]
    assert versions == sorted(set(versions))


def test_ctrl_c_ends_in_seconds_with_130(tmp_path: Path) -> None:
    process = started(tmp_path / "run")
    journal = tmp_path / "run" / "journal.jsonl"
    wait_until(lambda: journal.exists() and '"placed"' in journal.read_text(), 120, "placed")
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    wait_until(lambda: not leftovers(tmp_path / "run"), 60, "something of the run is left")
