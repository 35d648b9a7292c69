"""No isolation: commands run as plain processes of this user, on this file system. An explicit opt-in for development.

Paths are not mapped: `Box.path` tells where a path of the spec really is. What a command starts is killed by session,
by environment marker, and by control group where there is one; a process that sheds all three survives.
"""

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from qwengyre.errors import MachineError
from qwengyre.execution.sandboxes import cgroups
from qwengyre.execution.sandboxes.base import HOME, HOST, BoxSpec, Enforcement, Exit
from qwengyre.execution.sandboxes.child import Child
from qwengyre.execution.sandboxes.supervise import Disk, flags, supervise

LAUNCH = Path(__file__).with_name("launch.py")
INSIDE = Path(__file__).with_name("inside.py")
WARNING = (
    "sandbox.kind=process does not isolate: the harness and the model's commands run as you, with your files and your "
    "network"
)


class ProcessSandbox:
    """Boxes that are only folders. `scratch` is a folder of ours on this machine."""

    def __init__(self, *, run_id: str, scratch: Path):
        """Touches nothing before `check` or `open`."""
        self._run_id, self._scratch = run_id, scratch

    def check(self) -> Enforcement:
        """Always possible, on POSIX; the warning is to be shown. Raises MachineError elsewhere."""
        if os.name != "posix":
            raise MachineError("sandbox.kind=process needs Linux or macOS: run inside WSL or a Linux container")
        folders = cgroups.find().folders
        group = f"cgroup v{cgroups.find().version}"
        return Enforcement(
            sandbox="process",
            memory=group if "memory" in folders else "rlimit (address space of each process)",
            pids=group if "pids" in folders else "none",
            disk="rlimit per file, total polled",
            time="kill (best effort)",
            network="none enforced",
            warning=WARNING,
        )

    @contextlib.asynccontextmanager
    async def open(self, spec: BoxSpec) -> AsyncIterator["ProcessBox"]:
        """See `Sandbox.open`. Raises MachineError for a root other than `host`."""
        if spec.root != HOST:
            raise MachineError(f"sandbox.kind=process cannot use the root folder {spec.root}: map the image to 'host'")
        limits = spec.limits
        group = await asyncio.to_thread(
            cgroups.create, cgroups.find(), self._run_id, spec.name, memory_mb=limits.memory_mb, pids=limits.pids
        )
        box = ProcessBox(spec, group=group, run_id=self._run_id)
        try:
            yield box
        finally:
            await box.stop()
            await asyncio.to_thread(group.remove)


class ProcessBox:
    """One box: a workspace, a marker, and a port that leads to the gateway."""

    def __init__(self, spec: BoxSpec, *, group: cgroups.Group, run_id: str):
        """Made by `ProcessSandbox.open`."""
        self._spec, self._group, self._run_id = spec, group, run_id
        self._paths = {**spec.read_only, **spec.writable, spec.workdir: str(spec.workspace)}
        self._server = socket.create_server(("127.0.0.1", 0)) if spec.socket else None
        self._stopped = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def url(self) -> str:
        """See `Box.url`; a free port of this machine."""
        return f"http://127.0.0.1:{self._server.getsockname()[1]}" if self._server else ""

    def path(self, inside: str) -> str:
        """The host path of a path of the spec; others are themselves."""
        for point in sorted(self._paths, key=len, reverse=True):
            if inside == point or inside.startswith(f"{point}/"):
                return self._paths[point] + inside[len(point) :]
        return inside

    async def run(
        self, argv: list[str], *, log: Path, env: dict[str, str] | None = None, timeout_s: float | None = None
    ) -> Exit:
        """See `Box.run`."""
        if self._stopped.is_set():
            return Exit(137, stopped=True)
        self._idle.clear()
        kills, spec = self._group.memory_kills(), self._spec
        try:
            child = self._start(argv, env or {}, log)
            disk = Disk((spec.workspace, *map(Path, spec.writable.values())), spec.limits.disk_mb << 20)
            try:
                cause = await supervise(child, timeout_s=timeout_s, disk=disk, stopped=self._stopped)
            finally:
                await asyncio.to_thread(self._kill, child.pid)
                await asyncio.wait({child.over})
            code = child.over.result()
            memory = self._group.memory_kills() > kills
            ended = code if code >= 0 else 128 - code
            return Exit(ended, *flags(cause), out_of_memory=memory)
        finally:
            self._idle.set()

    async def stop(self) -> None:
        """See `Box.stop`."""
        self._stopped.set()
        await self._idle.wait()
        if self._server:
            self._server.close()

    def _start(self, argv: list[str], env: dict[str, str], log: Path) -> Child:
        limits, python = self._spec.limits, [os.path.realpath(sys.executable), "-I", "-S"]
        address = 0 if "memory" in self._group.folders else limits.memory_mb << 20
        launch = [*python, str(LAUNCH), ":".join(self._group.joins), str(limits.disk_mb << 20), str(address), "1", "--"]
        fds: list[int] = []
        if self._server and self._spec.socket:
            fds = [self._server.fileno()]
            argv = [*python, str(INSIDE), str(self._spec.socket), f"fd:{fds[0]}", "0", "--", *argv]
        else:
            argv = ["/usr/bin/env", *argv]  # finds the command on the box's PATH
        outer = {**self._environment(), **self._spec.env, **env, "QWENGYRE_RUN": self._run_id}
        return Child([*launch, *argv], env=outer, log=log, cwd=self._spec.workspace, fds=fds)

    def _environment(self) -> dict[str, str]:
        path = f"{os.path.realpath(sys.base_prefix)}/bin:/usr/local/bin:/usr/bin:/bin"
        return {"PATH": path, "HOME": self.path(HOME), "LANG": "C.UTF-8", "TERM": "dumb", "QWENGYRE_BOX": self._marker}

    @property
    def _marker(self) -> str:
        return f"{self._run_id}/{self._spec.name}"

    def _kill(self, session: int) -> None:
        """Kill the session, the marked and the grouped, until a look finds none."""
        import psutil

        self._group.kill()
        for _ in range(100):
            found = [p for p in psutil.process_iter() if self._belongs(p, session)]
            for process in found:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            if not found:
                return

    def _belongs(self, process: "object", session: int) -> bool:
        import psutil

        assert isinstance(process, psutil.Process)
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            if os.getsid(process.pid) == session or process.environ().get("QWENGYRE_BOX") == self._marker:
                return True
        return False
