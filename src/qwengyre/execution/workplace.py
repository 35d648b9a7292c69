"""The folders of one execution, and the blocking work on them. Called in threads.

folder/<execution>/   harness.log  ending.json  scrubbed.json  diff  work/  frozen.json  verifier/<attempt>/    kept
scratch/<execution>/  workspace/  home/                                                        gone once frozen
"""

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from qwengyre.errors import RunError
from qwengyre.execution.freeze import Frozen, diff, freeze, remove
from qwengyre.execution.sandboxes.base import HOST
from qwengyre.execution.tasksets.leaks import scrub
from qwengyre.execution.verifiers import options
from qwengyre.types import Query


class Workplace:
    """Where one execution lives on disk. `root` is its image's folder, or `host`."""

    def __init__(self, execution: str, *, folder: Path, scratch: Path, query: Query, root: str):
        """Touches nothing."""
        self.folder = folder / execution
        self._scratch = scratch / execution
        self.workspace, self.home = self._scratch / "workspace", self._scratch / "home"
        self.work, self.log = self.folder / "work", self.folder / "harness.log"
        self._query, self._bytes = query, query.limits.disk_mb << 20
        self._image = None if root == HOST else Path(root + query.workdir)

    def prepare(self) -> None:
        """Empty folders, with the image's workdir and the task's environment in the workspace.

        What an execution of that name left behind is removed: it was ended before it was frozen. Histories, caches and
        copies of the solution do not stay in the workspace.
        """
        self.clear()
        remove(self.folder)
        self.folder.mkdir(parents=True)
        self.home.mkdir(parents=True)
        if self._image is not None and self._image.is_dir():
            freeze(self._image, self.workspace, workdir=self._query.workdir, most_bytes=self._bytes)
        self.workspace.mkdir(exist_ok=True)
        if self._query.environment:
            shutil.copytree(self._query.environment, self.workspace, symlinks=True, dirs_exist_ok=True)
            _make_writable(self.workspace)
        solution = Path(self._query.metadata.get("folder") or "/nonexistent", "solution")
        if scrubbed := scrub(self.workspace, solution):
            self.write("scrubbed.json", {"scrubbed": scrubbed})

    def write_home(self, files: dict[str, str]) -> None:
        """A harness's own files, before it starts."""
        for name, text in files.items():
            path = self.home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", errors="replace")

    def write(self, name: str, value: dict[str, Any]) -> None:
        """A JSON file of the execution's folder, complete or absent."""
        path = self.folder / name
        part = path.with_name(f".{path.name}.part")
        part.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps({"schema_version": 1, **value}, indent=1) + "\n")
        os.replace(part, path)

    def read(self, name: str) -> dict[str, Any]:
        """What `write` wrote; {} when it did not."""
        try:
            return json.loads((self.folder / name).read_text())
        except FileNotFoundError:
            return {}

    def freeze(self) -> str:
        """The hash of the frozen work, made from the workspace on the first call. Raises RunError when that is gone."""
        frozen = self.read("frozen.json")
        if frozen:
            return frozen["hash"]
        if not self.workspace.is_dir():
            raise RunError(f"{self.folder.name}: its workspace was lost before it was frozen")
        for left in (self.work, self.folder / "work.part"):
            remove(left)
        made = freeze(self.workspace, self.folder / "work.part", workdir=self._query.workdir, most_bytes=self._bytes)
        os.rename(self.folder / "work.part", self.work)
        before = [path for path in (self._image, Path(self._query.environment or "/nonexistent")) if path]
        (self.folder / "diff").write_text(
            diff(before, self.work, without=self.read("scrubbed.json").get("scrubbed", ())),
            encoding="utf-8",
            errors="replace",
        )
        self.write("frozen.json", asdict(made))
        self.clear()
        return made.hash

    def grading_copy(self, attempt: int) -> tuple["GradingCopy", Frozen]:
        """A fresh copy of the frozen work for one attempt, and what it hashes to."""
        copy = GradingCopy(self.folder / "verifier" / str(attempt), Path(f"{self._scratch}-v{attempt}"))
        copy.clear()
        remove(copy.folder)
        (copy.logs / "verifier").mkdir(parents=True)
        frozen = freeze(self.work, copy.workspace, workdir=self._query.workdir, most_bytes=self._bytes)
        for name in self._query.metadata.get("remove_before_grading", ()):
            for path in list(copy.workspace.rglob(name)):
                remove(path)
        make_room(copy.workspace, options.of(self._query).place)
        return copy, frozen

    def clear(self) -> None:
        """Remove the workspace and the home."""
        remove(self._scratch)


def make_room(workspace: Path, place: str) -> None:
    """An empty folder at `place`, for tests that are laid there: no link on the way, and nothing beside it that Python
    would import by its name."""
    folder = workspace
    for part in filter(None, place.split("/")):
        if folder.joinpath(part).is_symlink() or not folder.joinpath(part).is_dir():
            remove(folder / part)
        folder = folder / part
        folder.mkdir(exist_ok=True)
    if folder != workspace:
        for path in list(folder.parent.iterdir()):
            if path.name.split(".")[0] == folder.name:
                remove(path)
        folder.mkdir()


def _make_writable(folder: Path) -> None:
    """A task set may be installed read-only; the agent's user owns its copy but has no right to override modes."""
    for top, _, names in os.walk(folder):
        os.chmod(top, os.stat(top).st_mode | 0o700)
        for name in names:
            path = os.path.join(top, name)
            if not os.path.islink(path):
                os.chmod(path, os.stat(path).st_mode | 0o600)


class GradingCopy:
    """One attempt at grading: `folder` is kept with the run, the copy is not."""

    def __init__(self, folder: Path, scratch: Path):
        """Touches nothing."""
        self.folder, self.logs = folder, folder / "logs"
        self._scratch, self.workspace = scratch, scratch / "workspace"

    def clear(self) -> None:
        """Remove the copy."""
        remove(self._scratch)
