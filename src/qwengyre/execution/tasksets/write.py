"""Write generated tasks as Harbor-format folders: a whole set, complete or absent."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Task:
    """One generated task. `files` are the workspace's, `case` is the grader's, `solve` and `half` are shell lines."""

    name: str
    instruction: str
    files: dict[str, str] = field(default_factory=dict[str, str])
    case: dict[str, object] = field(default_factory=dict[str, object])
    solve: str = "true"
    half: str = "true"


def write(folder: Path, tasks: Iterable[Task], *, grader: Path, agent_s: float) -> Path:
    """Write the set unless `folder` exists: then it is complete. Two writers at once leave one complete set."""
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    for task in tasks:
        _write(part / task.name, task, grader.read_text(), agent_s)
    part.chmod(0o755)
    try:
        os.rename(part, folder)
    except OSError:  # another writer was first
        shutil.rmtree(part)
        if not folder.exists():
            raise
    return folder


def _write(folder: Path, task: Task, grader: str, agent_s: float) -> None:
    toml = (
        f'schema_version = "1.4"\n\n[task]\nname = "qwengyre/{task.name}"\n\n[agent]\ntimeout_sec = {agent_s}\n\n'
        '[verifier]\ntimeout_sec = 60.0\n\n[environment]\nnetwork_mode = "no-network"\nworkdir = "/app"\n'
    )
    shell = "#!/bin/sh\n"
    files = {
        "task.toml": toml,
        "instruction.md": task.instruction + "\n",
        "tests/test.sh": f'{shell}exec python3 -I -S "${{0%/*}}/grade.py"\n',
        "tests/grade.py": grader,
        "tests/case.json": json.dumps(task.case, indent=1) + "\n",
        "solution/solve.sh": f"{shell}{task.solve}\n",
        "solution/half.sh": f"{shell}{task.half}\n",
        **{f"environment/{name}": text for name, text in task.files.items()},
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if name.endswith(".sh"):
            path.chmod(0o755)
