"""What would show the agent its solution or tests: refused in a task's own files, taken out of what an image holds."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from qwengyre.errors import TaskError
from qwengyre.execution.freeze import remove

HISTORY = (".git", ".hg", ".svn", ".bzr", ".jj")
CACHES = (
    "__pycache__",
    ".pytest_cache",
    ".mypy_cache",
    ".ruff_cache",
    ".hypothesis",
    ".tox",
    ".nox",
    ".ipynb_checkpoints",
)
_AT_TOP = ("solution", "tests", "solve.sh", "reward.json", "reward.txt", "task.toml", "instruction.md")
_HISTORY_HEADS = (b"# v2 git bundle", b"# v3 git bundle", b"PACK\0\0\0")
_BARE = {"HEAD", "objects", "refs"}
_SHORTEST = 32
"""A shared file shorter than this (an empty __init__.py, a one-word input) gives nothing away."""


def refuse_leaks(environment: Path, task: Path) -> None:
    """Raises TaskError for version control, tests or solutions by name or content, links, and special files."""
    secrets = contents([task / "tests", task / "solution"])
    for path in _walk(environment):
        mode = path.lstat().st_mode
        if _history(path, mode) or (path.parent == environment and path.name in _AT_TOP):
            raise TaskError(f"{path}: the agent could read the task's history, tests or solution: remove it")
        if stat.S_ISLNK(mode) and not path.resolve().is_relative_to(environment.resolve()):
            raise TaskError(f"{path}: a link out of the environment: replace it by what it points to")
        if not (stat.S_ISLNK(mode) or stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
            raise TaskError(f"{path}: neither a file, a folder nor a link: remove it")
        if _same(path, mode, secrets):
            raise TaskError(f"{path}: the same file stands in tests/ or solution/: the agent could read it")


def scrub(workspace: Path, solution: Path) -> list[str]:
    """Take version control, caches and copies of the solution's files out of a workspace that an agent will see.

    Returns their names, relative.
    """
    secrets, found = contents([solution]), list[str]()
    for path in _walk(workspace):
        if os.path.lexists(path):  # not gone with its folder
            mode = path.lstat().st_mode
            if _history(path, mode) or path.name in CACHES or _same(path, mode, secrets):
                remove(path)
                found.append(str(path.relative_to(workspace)))
    return found


def contents(folders: list[Path]) -> dict[int, set[bytes]]:
    """Contents of files by size."""
    found: dict[int, set[bytes]] = {}
    for path in (path for folder in folders if folder.is_dir() for path in folder.rglob("*")):
        if path.is_file() and path.stat().st_size >= _SHORTEST:
            found.setdefault(path.stat().st_size, set()).add(path.read_bytes())
    return found


def _walk(folder: Path) -> Iterator[Path]:
    return (Path(top, name) for top, folders, names in os.walk(folder) for name in (*folders, *names))


def _history(path: Path, mode: int) -> bool:
    """Version control: its folder by name, a bare repository, a bundle or a pack of objects wherever it lies."""
    if path.name in HISTORY:
        return True
    if stat.S_ISDIR(mode):
        return set(os.listdir(path)) >= _BARE
    if not stat.S_ISREG(mode):
        return False
    with path.open("rb") as file:
        return file.read(16).startswith(_HISTORY_HEADS)


def _same(path: Path, mode: int, secrets: dict[int, set[bytes]]) -> bool:
    return stat.S_ISREG(mode) and path.stat().st_size in secrets and path.read_bytes() in secrets[path.stat().st_size]
