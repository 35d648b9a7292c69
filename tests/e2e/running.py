"""Whole runs, as a user starts them: the installed command in a process of its own."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
COMMAND = Path(sys.executable).with_name("qwengyre")


def qwengyre(*words: str, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [str(COMMAND), *words], capture_output=True, text=True, timeout=timeout_s, cwd=ROOT, check=False
    )


def lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a .jsonl file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def leftovers(run_dir: Path) -> list[str]:
    """Whatever of the newest start of a run is still there: processes, cgroups, its temporary folder."""
    name = json.loads((run_dir / "lock").read_text())["id"]
    cgroups = [path for path, _, _ in os.walk("/sys/fs/cgroup") if path.endswith(f"/qwengyre-{name}")]
    folder = Path(tempfile.gettempdir()) / f"qwengyre-{name}"
    return marked(name) + cgroups + [str(folder)] * folder.exists()


def marked(run_id: str) -> list[str]:
    """Processes that carry a run's mark in their environment, zombies left out."""
    found: list[str] = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            ours = f"QWENGYRE_RUN={run_id}".encode() in (entry / "environ").read_bytes().split(b"\0")
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if ours and state != "Z":
            found.append(f"{entry.name} {command}")
    return found


def wait_until(true: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Poll, since the thing watched is another process's death."""
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s} s"
        time.sleep(0.1)


def kill_group(process: subprocess.Popen[str]) -> None:
    """`kill -9` of the command alone."""
    os.kill(process.pid, signal.SIGKILL)
    process.wait(10)
