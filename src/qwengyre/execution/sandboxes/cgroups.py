"""Memory and pid limits by control groups: version 2 where it is delegated to us, else version 1. Stdlib only.

Every box has the folder `qwengyre-<run>/<box>` in each hierarchy, so that a reaper that knows only the run's id finds
whatever is left: `sweep(run_id)`.
"""

import contextlib
import functools
import os
import re
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

PREFIX = "qwengyre-"
_LOOKING = threading.Lock()
_LIMIT = {1: {"memory": "memory.limit_in_bytes", "pids": "pids.max"}, 2: {"memory": "memory.max", "pids": "pids.max"}}


@dataclass(frozen=True)
class Hierarchy:
    """Where a run's folder can be made: controller (memory, pids) -> parent folder. May lack a controller."""

    version: int
    folders: dict[str, Path]


@dataclass(frozen=True)
class Mount:
    """A mounted hierarchy: its folder, the controllers of a version 1 mount, and our own path in it."""

    version: int
    folder: Path
    controllers: frozenset[str]
    own: str

    def candidates(self) -> list[Path]:
        """Our own group and its ancestors, nearest first, as far as they are visible here."""
        parts = Path(self.own.lstrip("/")).parts
        paths = [self.folder.joinpath(*parts[:n]) for n in range(len(parts), -1, -1)]
        return [path for path in paths if path.is_dir()]


@dataclass(frozen=True)
class Group:
    """The control groups of one box."""

    version: int
    folders: dict[str, Path]
    pids: int

    @property
    def joins(self) -> list[str]:
        """Files into which a process writes 0 to join."""
        return [str(folder / "cgroup.procs") for folder in dict.fromkeys(self.folders.values())]

    def memory_kills(self) -> int:
        """How many processes were killed for memory so far."""
        folder = self.folders.get("memory")
        if folder is None:
            return 0
        text = _read(folder / ("memory.events" if self.version == 2 else "memory.oom_control"))
        found = re.search(r"^oom_kill (\d+)", text, re.MULTILINE)
        return int(found[1]) if found else 0

    def kill(self) -> int:
        """Kill every process inside, however fast it forks; the group can be used again. Blocks for up to 5 s."""
        killed = _kill(list(self.folders.values()))
        if "pids" in self.folders:
            _write(self.folders["pids"] / "pids.max", str(self.pids))
        return killed

    def remove(self) -> None:
        """Kill what is left and remove the folders (and the run's folder, when this was its last box)."""
        self.kill()
        for folder in dict.fromkeys(self.folders.values()):
            _remove(folder)
            with contextlib.suppress(OSError):
                folder.parent.rmdir()


@functools.cache
def find() -> Hierarchy:
    """The hierarchy that can limit boxes here, looked for once; `folders` is empty when there is none."""
    with _LOOKING:
        return _find()


def _find() -> Hierarchy:
    mounts = _mounts()
    for mount in mounts:
        if mount.version == 2:
            for candidate in mount.candidates():
                if _delegated(candidate):
                    return Hierarchy(2, {"memory": candidate, "pids": candidate})
    folders: dict[str, Path] = {}
    for mount in mounts:
        for controller in ("memory", "pids"):
            if controller in mount.controllers:
                usable = [path for path in mount.candidates() if _makes_groups(path, _LIMIT[1][controller])]
                folders |= {controller: usable[0]} if usable else {}
    return Hierarchy(1, folders)


def create(hierarchy: Hierarchy, run_id: str, name: str, *, memory_mb: int, pids: int) -> Group:
    """Make the groups of a box and set their limits. A group left over from before is emptied first."""
    folders = {c: parent / f"{PREFIX}{run_id}" / name for c, parent in hierarchy.folders.items()}
    group = Group(hierarchy.version, folders, pids)
    values = {"memory": str(memory_mb << 20), "pids": str(pids)}
    for controller, folder in group.folders.items():
        _make(folder, hierarchy.version)
        _kill([folder])
        _write(folder / _LIMIT[hierarchy.version][controller], values[controller])
    _no_swap(group, values["memory"])
    return group


def sweep(run_id: str) -> int:
    """Kill everything inside a run's groups and remove them. Returns how many folders were removed."""
    removed = 0
    for mount in _mounts():
        for candidate in mount.candidates():
            top = candidate / f"{PREFIX}{run_id}"
            if top.is_dir():
                folders = [Path(path) for path, _, _ in os.walk(top, topdown=False)]
                _kill(folders)
                removed += sum(_remove(folder) for folder in folders)
    return removed


def _mounts() -> list[Mount]:
    """Mounted hierarchies, from /proc; none on systems without it."""
    own: dict[str, str] = {}
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        number, names, path = line.split(":", 2)
        own |= dict.fromkeys(names.split(","), path) if names else {"": path} if number == "0" else {}
    mounts: list[Mount] = []
    for line in _read(Path("/proc/self/mountinfo")).splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        if kind not in ("cgroup", "cgroup2"):
            continue
        names = frozenset(options.split(",")) & {"memory", "pids"} if kind == "cgroup" else frozenset[str]()
        path = own.get(next(iter(names), ""), "/")
        mounts.append(Mount(2 if kind == "cgroup2" else 1, Path(left.split(" ")[4]), names, path))
    return mounts


def _delegated(folder: Path) -> bool:
    """Whether a version 2 group gives memory and pids to groups that we make in it."""
    enabled = set(_read(folder / "cgroup.subtree_control").split())
    if not {"memory", "pids"} <= enabled and not _write(folder / "cgroup.subtree_control", "+memory +pids"):
        return False
    return os.access(folder / "cgroup.procs", os.W_OK) and _makes_groups(folder, "memory.max")


def _makes_groups(folder: Path, limit: str) -> bool:
    probe = folder / f"{PREFIX}probe-{os.getpid()}"
    try:
        probe.mkdir(exist_ok=True)
        return os.access(probe / limit, os.W_OK)
    except OSError:
        return False
    finally:
        with contextlib.suppress(OSError):
            probe.rmdir()


def _make(folder: Path, version: int) -> None:
    """Make a box's folder in the run's, which another box, thinking itself the last, may remove meanwhile."""
    for attempt in range(1000):
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder.parent)
        if version == 2:
            _write(folder.parent / "cgroup.subtree_control", "+memory +pids")
        try:
            os.mkdir(folder)
        except FileExistsError:
            return
        except FileNotFoundError:
            if attempt == 999:
                raise
        else:
            return


def _no_swap(group: Group, memory: str) -> None:
    """Swap would make the memory limit soft. Absent where the kernel does not count swap."""
    folder = group.folders.get("memory")
    if folder is not None:
        name, value = ("memory.swap.max", "0") if group.version == 2 else ("memory.memsw.limit_in_bytes", memory)
        _write(folder / name, value)


def _kill(folders: list[Path]) -> int:
    """Kill all members. No new forks first (pids.max 0), so that the loop ends."""
    for folder in folders:
        if (folder / "pids.max").exists():
            _write(folder / "pids.max", "0")
        if (folder / "cgroup.kill").exists():
            _write(folder / "cgroup.kill", "1")
    killed: set[int] = set()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        members = {int(pid) for folder in folders for pid in _read(folder / "cgroup.procs").split()}
        if not members:
            break
        killed |= members
        for pid in members - {os.getpid()}:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    return len(killed)


def _remove(folder: Path) -> bool:
    for _ in range(100):  # a group stays busy for a moment after its last process is gone
        try:
            folder.rmdir()
        except FileNotFoundError:
            return False
        except OSError:
            time.sleep(0.01)
        else:
            return True
    return False


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


def _write(file: Path, text: str) -> bool:
    try:
        file.write_text(text)
    except OSError:
        return False
    return True
