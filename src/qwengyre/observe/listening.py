"""What listens where: in general, and for each run below `runs/` that is alive now."""

import fcntl
import json
from pathlib import Path
from typing import Any

PORTS = (
    "during a run: the gateway on 127.0.0.1 (gateway.port, 0 = a free one) and on a unix socket in the run's temporary "
    "folder; each cell's engine on a free port of 127.0.0.1; a local Ray on free ports of this machine, which answer "
    "only to the run's random token"
)


def listening(runs: Path = Path("runs")) -> list[str]:
    """The rule, then a line for each process of each live run."""
    return [PORTS, *(line for folder in sorted(runs.glob("*/")) if is_alive(folder) for line in _run(folder))]


def is_alive(run_dir: Path) -> bool:
    """Whether a command holds the folder's lock."""
    try:
        with (run_dir / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _run(run_dir: Path) -> list[str]:
    try:
        found: dict[str, Any] = json.loads((run_dir / "processes.json").read_text())
    except OSError:
        return [f"{run_dir}: it is starting"]
    lines = [f"{run_dir}: driver pid {found['driver']}; Ray at {found['ray']['address']}"]
    for name, process in found["processes"].items():
        where = ", ".join(process[key] for key in ("url", "socket") if key in process)
        lines.append(f"  {name}, pid {process['pid']}: {where or 'listens to Ray only'}")
    return lines
