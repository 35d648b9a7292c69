"""Refuse a task whose environment would show the agent its solution or its tests."""

import os
import stat
from pathlib import Path

from qwengyre.errors import TaskError

_ANYWHERE = (".git", ".hg", ".svn")
_AT_TOP = ("solution", "tests", "solve.sh", "reward.json", "reward.txt", "task.toml", "instruction.md")
_SHORTEST = 32
"""A shared file shorter than this (an empty __init__.py, a one-word input) gives nothing away."""


def refuse_leaks(environment: Path, task: Path) -> None:
    """Raises TaskError for version control, tests or solutions by name or content, links, and special files."""
    secrets = _contents([task / "tests", task / "solution"])
    for top, folders, names in os.walk(environment):
        for name in (*folders, *names):
            path = Path(top, name)
            mode = path.lstat().st_mode
            if name in _ANYWHERE or (Path(top) == environment and name in _AT_TOP):
                raise TaskError(f"{path}: the agent could read the task's history, tests or solution: remove it")
            if stat.S_ISLNK(mode) and not path.resolve().is_relative_to(environment.resolve()):
                raise TaskError(f"{path}: a link out of the environment: replace it by what it points to")
            if not (stat.S_ISLNK(mode) or stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
                raise TaskError(f"{path}: neither a file, a folder nor a link: remove it")
            if stat.S_ISREG(mode) and path.stat().st_size in secrets:
                content = path.read_bytes()
                if content in secrets[path.stat().st_size]:
                    raise TaskError(f"{path}: the same file stands in tests/ or solution/: the agent could read it")


def _contents(folders: list[Path]) -> dict[int, set[bytes]]:
    """Contents by size."""
    found: dict[int, set[bytes]] = {}
    for path in (path for folder in folders if folder.is_dir() for path in folder.rglob("*")):
        if path.is_file() and path.stat().st_size >= _SHORTEST:
            found.setdefault(path.stat().st_size, set()).add(path.read_bytes())
    return found
