"""Harnesses on this machine: each pinned version in a folder of its own in the cache, made once, complete or absent.

    install(read("mini-swe-agent")) -> Installed        found(profile) -> Installed or None

    <cache>/harnesses/<name>-<version>/        the virtual environment, or node_modules; installed.json is written last
    <cache>/harnesses/<name>-<version>.log     what the last installation said

They never share an environment with us: their dependencies are theirs.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from qwengyre.errors import MachineError
from qwengyre.profiles import FOLDER, NODE, Profile, read
from qwengyre.types import Phase, Progress

_MARK = "installed.json"
_DOWNLOADS = ".downloads"
_LOOK_S = 2.0
"""How often the size of what is there so far is looked at."""


@dataclass(frozen=True)
class Installed:
    """Where it is. `program` is what is started; `node` is the program of the pinned Node, "" without one.

    `shown`: all that a sandbox must show of this machine for it to run.
    """

    folder: Path
    program: str
    node: str
    shown: tuple[str, ...]


def cache() -> Path:
    """$QWENGYRE_CACHE, else qwengyre in $XDG_CACHE_HOME, else in ~/.cache; and there `harnesses`."""
    general = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser()
    return Path(os.environ.get("QWENGYRE_CACHE") or general / "qwengyre").expanduser() / "harnesses"


def found(profile: Profile) -> Installed | None:
    """The installed harness, or None when it is absent, incomplete, or made by a Python that is gone."""
    folder = cache() / profile.key
    try:
        mark = json.loads((folder / _MARK).read_text())
    except (OSError, ValueError):
        return None
    if mark.get("pins") != _pins(profile) or not Path(mark["python"]).exists():
        return None
    program = _program(folder, profile)
    if program is None:
        return None
    node = None
    if profile.install.kind == "npm" and (node := found(read(NODE))) is None:
        return None
    shown = [str(folder), *([str(node.folder)] if node else [])]
    prefix = str(Path(mark["python"]).parent.parent)
    if profile.install.kind == "pip" and prefix != os.path.realpath(sys.base_prefix):
        shown.append(prefix)
    return Installed(folder, str(program), node.program if node else "", tuple(shown))


def install(profile: Profile, progress: Progress = lambda phase: None) -> Installed:
    """Make it unless it is there; `progress` hears how much of it is there, about.

    Two at once make it once. Raises MachineError: what failed, and where the whole of it stands.
    """
    if (there := found(profile)) is not None:
        return there
    if find_spec("filelock") is None:
        raise MachineError("filelock is not installed; pip install 'qwengyre[run]'")
    from filelock import FileLock

    try:
        cache().mkdir(parents=True, exist_ok=True)
        with FileLock(cache() / f".{profile.key}.lock"):
            if (there := found(profile)) is None:
                _make(profile, progress)
    except OSError as error:
        reason = error.strerror or str(error)
        raise MachineError(
            f"harness {profile.name}: cannot be kept in {cache()} ({reason}); set QWENGYRE_CACHE to a writable folder"
        ) from None
    there = there or found(profile)
    if there is None:
        raise MachineError(
            f"harness {profile.name}: installed, but {profile.install.program} is not in {cache() / profile.key}; "
            f"the log is {_log(profile)}"
        )
    return there


def need(profile: Profile) -> Installed:
    """The installed harness. Raises MachineError with the one command that installs it."""
    there = found(profile)
    if there is None:
        raise MachineError(f"harness {profile.name} {profile.version} is not installed: {command(profile)}")
    return there


def command(profile: Profile) -> str:
    """What a person types to install it."""
    return f"qwengyre harness install {profile.name}"


def _make(profile: Profile, progress: Progress) -> None:
    """Under its lock. What a killed installation left has no mark, and is removed."""
    folder, what = cache() / profile.key, profile.install
    node = install(read(NODE), progress) if what.kind == "npm" else None
    shutil.rmtree(folder, ignore_errors=True)
    _log(profile).unlink(missing_ok=True)
    try:
        (folder / _DOWNLOADS).mkdir(parents=True)
        for words in _pip(folder, profile) if node is None else _npm(folder, profile, node.program):
            _run(words, profile, progress)
        shutil.rmtree(folder / _DOWNLOADS)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    _write_mark(folder, profile)
    size = _bytes(folder)
    progress(Phase(_what(profile), size, size, "B", over=True))


def _pip(folder: Path, profile: Profile) -> list[list[str]]:
    """A virtual environment of the Python that runs us, at its final place: its scripts hold their own path."""
    python, bare = str(folder / "bin" / "python"), find_spec("pip") is not None
    pinned = ["-c", str(FOLDER / profile.install.constraints)] if profile.install.constraints else []
    pip = [sys.executable, "-m", "pip", "--python", python] if bare else [python, "-m", "pip"]
    flags = ["--disable-pip-version-check", "--no-input", "--quiet"]
    venv = [_base_python(), "-m", "venv", *(["--without-pip"] if bare else []), str(folder)]
    return [venv, [*pip, "install", *flags, *pinned, *profile.install.packages]]


def _npm(folder: Path, profile: Profile, node: str) -> list[list[str]]:
    """Packages as they are published: none of their install scripts runs."""
    npm = Path(node).parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    before = [f"--before={profile.install.before}"] if profile.install.before else []
    flags = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-save", "--no-update-notifier", "--loglevel=error"]
    return [[node, str(npm), "install", "--prefix", str(folder), *flags, *before, *profile.install.packages]]


def _run(words: Sequence[str], profile: Profile, progress: Progress) -> None:
    """One step to its end. Raises MachineError with the last thing that it complained of."""
    path = f"{Path(words[0]).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    downloads = cache() / profile.key / _DOWNLOADS  # where they count as progress
    env = {**os.environ, "PATH": path, "TMPDIR": str(downloads)}
    log, folder, most = _log(profile), cache() / profile.key, profile.install.megabytes * 10**6
    with (
        log.open("a") as output,
        subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=env) as step,
    ):
        try:
            while step.poll() is None:
                progress(Phase(_what(profile), min(_bytes(folder), most), most, "B"))
                with suppress(subprocess.TimeoutExpired):
                    step.wait(_LOOK_S)
        finally:
            step.kill()
    if step.returncode:
        raise MachineError(
            f"harness {profile.name}: {profile.install.kind} failed ({_complaint(log)}); the whole of it is in {log}; "
            f"again: {command(profile)}"
        )


def _write_mark(folder: Path, profile: Profile) -> None:
    values = {
        "schema_version": 1,
        "name": profile.name,
        "version": profile.version,
        "pins": _pins(profile),
        "python": os.path.realpath(_base_python()),
        "at": int(time.time()),
    }
    part = folder / f".{_MARK}"
    part.write_text(json.dumps(values, indent=1) + "\n")
    part.replace(folder / _MARK)


def _pins(profile: Profile) -> str:
    """A digest of everything that decides what is installed."""
    what = profile.install
    parts = [what.kind, *what.packages, what.before]
    if what.constraints:
        parts.append((FOLDER / what.constraints).read_text())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _program(folder: Path, profile: Profile) -> Path | None:
    return next((path for path in sorted(folder.glob(profile.install.program)) if path.is_file()), None)


def _base_python() -> str:
    """The Python that our own virtual environment was made of: a sandbox shows its folder."""
    return getattr(sys, "_base_executable", sys.executable)


def _log(profile: Profile) -> Path:
    return cache() / f"{profile.key}.log"


def _complaint(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["no message"])[-1][:200]


def _bytes(folder: Path) -> int:
    size = 0
    for top, _, files in os.walk(folder):
        for name in files:
            with suppress(OSError):  # gone meanwhile
                size += os.lstat(os.path.join(top, name)).st_size
    return size


def _what(profile: Profile) -> str:
    source = "PyPI" if profile.install.kind == "pip" else "npm"
    return f"harness {profile.name} {profile.version}: installing from {source} (once)"
