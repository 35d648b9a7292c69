"""The last process of a run: when the command is gone, whatever ended it, nothing of the run stays alive.

    python -m qwengyre.cluster.reaper RUN_ID FOLDER      (standard input: a pipe held open by the command)

Started by the command in a session of its own. It waits for the end of its standard input, gives processes that are
ending by themselves a moment, then kills every process whose environment carries QWENGYRE_RUN=RUN_ID, removes the
run's cgroups and the run's temporary FOLDER. Standard library only, so that it starts at once and needs nothing.
"""

import os
import shutil
import signal
import sys
import time
from pathlib import Path

from qwengyre.execution.sandboxes import cgroups

GRACE_S = 2.0
PASSES = 50


def members(run_id: str) -> list[int]:
    """Processes of the run, by the mark in their environment; never this one."""
    mark = f"QWENGYRE_RUN={run_id}".encode()
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        try:
            if pid != os.getpid() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(pid)
        except OSError:
            continue  # gone meanwhile, or another user's
    return found


def _running(pid: int) -> bool:
    """False for zombies: they are dead and only wait for their parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def reap(run_id: str, folder: Path) -> None:
    """Kill, sweep, remove; repeated until nothing is left."""
    deadline = time.monotonic() + GRACE_S
    while members(run_id) and time.monotonic() < deadline:
        time.sleep(0.1)
    for _ in range(PASSES):
        left = [pid for pid in members(run_id) if _running(pid)]
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        cgroups.sweep(run_id)
        if not left:
            break
        time.sleep(0.1)
    shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Wait for the command's end, then reap."""
    run_id, folder = sys.argv[1], Path(sys.argv[2])
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    while sys.stdin.buffer.read(1):
        pass
    reap(run_id, folder)


if __name__ == "__main__":
    main()
