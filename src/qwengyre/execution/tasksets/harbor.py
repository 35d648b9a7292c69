"""Native reader of the Harbor task format: a folder of task folders, or one.

    task.toml  instruction.md  environment/  tests/test.sh  solution/ (never shown to a sandbox)

All tasks are read and checked at once, so that a broken one is one line before anything runs.
"""

import os
import re
import tomllib
from pathlib import Path, PurePosixPath
from typing import Any

from qwengyre.errors import TaskError
from qwengyre.execution.tasksets.grading import grading
from qwengyre.execution.tasksets.leaks import refuse_leaks
from qwengyre.execution.tasksets.schema import check, megabytes
from qwengyre.types import Limits, Query

_RESERVED = (
    "bin",
    "dev",
    "etc",
    "lib",
    "lib64",
    "logs",
    "proc",
    "run",
    "sbin",
    "solution",
    "sys",
    "tests",
    "tmp",
    "usr",
)
_VERIFIER_S = 600.0


class HarborTasks:
    """The tasks under `path`, sorted by name, the first `count` of them. `limits` are caps (see `_limits`)."""

    def __init__(self, path: Path, *, limits: Limits, count: int | None = None):
        """Raises TaskError for a missing folder, a broken task, or a task whose solution the agent could reach."""
        folders = _folders(path)
        self._queries = tuple(read(folder, limits) for folder in folders[:count])

    def __len__(self) -> int:
        """Tasks read."""
        return len(self._queries)

    def __getitem__(self, index: int) -> Query:
        """Task `index` in the order of names."""
        return self._queries[index]


def read(folder: Path, limits: Limits) -> Query:
    """One task folder. Raises TaskError."""
    folder = folder.resolve()
    file = folder / "task.toml"
    values = _toml(file)
    check(values, file)
    environment, agent = values.get("environment", {}), values.get("agent", {})
    verifier = values.get("verifier", {})
    for name, why in (("steps", "multi-step tasks"), ("trajectory.json", "prior context")):
        if (folder / name).exists():
            raise TaskError(f"{folder / name}: {why}: not supported yet, remove it")
    verifying = grading(values, folder)
    if verifying.kind != "pytest" and not (folder / "tests" / "test.sh").is_file():
        raise TaskError(f"{folder}: no tests/test.sh: a task needs the script that writes its reward")
    metadata = {"folder": str(folder), "verifier": verifying, **_remove(values, file), **_kind(values)}
    return Query(
        name=values.get("task", {}).get("name", folder.name),
        instruction=_instruction(folder / "instruction.md"),
        image=environment.get("docker_image", ""),
        workdir=_workdir(environment.get("workdir", "/app"), file),
        environment=_environment(folder, environment.get("docker_image", "")),
        tests=str(folder / "tests"),
        limits=_limits(agent, verifier, environment, limits),
        env=_env(environment.get("env", {}), file),
        verifier_env=_env(verifier.get("env", {}), file),
        metadata=metadata,
    )


def _folders(path: Path) -> list[Path]:
    if not path.is_dir():
        raise TaskError(
            f"tasks.path={path}: no such folder in {Path.cwd()}: expected a task folder or a folder of them"
        )
    if (path / "task.toml").exists():
        return [path]
    parts = ("task.toml", "instruction.md", "tests", "solution")
    found = [f for f in sorted(path.iterdir()) if f.is_dir() and any((f / part).exists() for part in parts)]
    if not found:
        raise TaskError(f"tasks.path={path}: no task folder in it: expected folders that hold a task.toml")
    return found


def _toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TaskError(f"{file.parent}: no task.toml: a task folder needs one") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise TaskError(f"{file} is not a TOML file: {error}") from None


def _instruction(file: Path) -> str:
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (FileNotFoundError, IsADirectoryError):
        raise TaskError(f"{file.parent}: no instruction.md: a task needs its instruction") from None
    except UnicodeDecodeError as error:
        raise TaskError(f"{file} is not UTF-8 text: {error}") from None
    if not text or "\0" in text:
        raise TaskError(f"{file} is empty or holds a NUL: expected the instruction as text")
    return text


def _workdir(workdir: str, file: Path) -> str:
    path = PurePosixPath(workdir)
    top = path.parts[1:2]
    plain = path.is_absolute() and ".." not in path.parts and "\0" not in workdir
    if not plain or not top or top[0] in _RESERVED:
        raise TaskError(f"{file}: environment.workdir={workdir!r}: expected an absolute path outside the system's own")
    return str(path)


def _environment(folder: Path, image: str) -> str:
    """The folder copied into the workspace; "" when an image holds it, or there is none."""
    environment = folder / "environment"
    compose = [name for name in ("docker-compose.yaml", "docker-compose.yml") if (environment / name).exists()]
    if compose:
        raise TaskError(f"{environment / compose[0]}: compose files: not supported yet, use one docker_image")
    if (environment / "Dockerfile").exists():
        if not image:
            raise TaskError(
                f"{environment / 'Dockerfile'}: images are not built here: set environment.docker_image in "
                "task.toml and map it in [sandbox.images] to a root folder"
            )
        return ""  # its files are in the image
    if not environment.is_dir():
        return ""
    refuse_leaks(environment, folder)
    return str(environment)


def _limits(agent: dict[str, Any], verifier: dict[str, Any], environment: dict[str, Any], caps: Limits) -> Limits:
    """The task's own limits, at most the caps; a cap where the task says nothing. The verifier's time is the task's."""
    memory, storage = environment.get("memory_mb", caps.memory_mb), environment.get("storage_mb", caps.disk_mb)
    memory = megabytes(environment["memory"]) if "memory" in environment else memory
    storage = megabytes(environment["storage"]) if "storage" in environment else storage
    return Limits(
        agent_s=min(float(agent.get("timeout_sec", caps.agent_s)), caps.agent_s),
        overall_s=caps.overall_s,
        verifier_s=min(float(verifier.get("timeout_sec", _VERIFIER_S)), caps.verifier_s),
        memory_mb=min(int(memory), caps.memory_mb),
        pids=caps.pids,
        disk_mb=min(int(storage), caps.disk_mb),
    )


def _env(values: dict[str, str], file: Path) -> dict[str, str]:
    """Plain values. `${NAME:-x}` is x: a task never reads this machine's environment."""

    def default(found: re.Match[str]) -> str:
        if found[2] is None:
            raise TaskError(
                f"{file}: '{found[0]}' asks for a variable of this machine: give a default, ${{{found[1]}:-x}}"
            )
        return found[2]

    return {name: re.sub(r"\$\{(\w+)(?::-([^}]*))?\}", default, value) for name, value in values.items()}


def _kind(values: dict[str, Any]) -> dict[str, Any]:
    """`[metadata] kind`, else `category`: what evaluations group tasks by."""
    metadata = values.get("metadata", {})
    kind = (metadata.get("kind") or metadata.get("category")) if isinstance(metadata, dict) else None
    return {"kind": kind} if isinstance(kind, str) else {}


def _remove(values: dict[str, Any], file: Path) -> dict[str, Any]:
    """`[metadata] remove_before_grading`: names deleted from the graded copy at any depth (conftest.py, say)."""
    metadata = values.get("metadata", {})
    names = metadata.get("remove_before_grading", []) if isinstance(metadata, dict) else []
    if not isinstance(names, list) or not all(isinstance(n, str) and n and os.sep not in n for n in names):
        raise TaskError(f"{file}: metadata.remove_before_grading={names!r}: expected a list of file names")
    return {"remove_before_grading": tuple(names)} if names else {}
