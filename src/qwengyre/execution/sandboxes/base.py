"""What an execution needs of a sandbox: a box that shows what it was given, runs commands, and leaves nothing behind.

A box never grades and never decides how long a harness may run: it is told.
"""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from qwengyre.types import Limits

HOST = "host"
"""The root that stands for this machine's own /usr (and the Python that runs us), read-only."""

HOME = "/home/agent"
GATEWAY = "/run/gateway"


@dataclass(frozen=True)
class BoxSpec:
    """What a box shows. Paths inside are absolute; everything else on the machine stays invisible.

    `name` is unique in the run. `root` is `host` or a root folder. `workspace` is the host folder that is writable at
    `workdir`. `read_only` and `writable` map a path inside to a host path. `socket` is the gateway's unix socket: its
    folder is bound, so a restarted gateway is found again; None: no way out at all.
    """

    name: str
    root: str
    workdir: str
    workspace: Path
    limits: Limits
    read_only: dict[str, str] = field(default_factory=dict[str, str])
    writable: dict[str, str] = field(default_factory=dict[str, str])
    env: dict[str, str] = field(default_factory=dict[str, str])
    socket: Path | None = None


@dataclass(frozen=True)
class Exit:
    """How a command ended. `code` is 128 + n after signal n. At most one of the causes below is set.

    `failed` is a one-line reason when the sandbox itself failed, so that the command's end says nothing.
    """

    code: int
    timed_out: bool = False
    over_disk: bool = False
    stopped: bool = False
    failed: str = ""
    out_of_memory: bool = False
    """Something in the box was killed for memory (the command may have survived it)."""


@dataclass(frozen=True)
class Enforcement:
    """Which limits hold on this machine, and by what: `cgroup v1`, `rlimit`, ... or `none`. `warning`: one line."""

    sandbox: str
    memory: str
    pids: str
    disk: str
    time: str
    network: str
    warning: str = ""


class Box(Protocol):
    """One open box. `run` may be called several times, one at a time."""

    @property
    def url(self) -> str:
        """Where the gateway answers, seen from inside ("" without a socket)."""
        ...

    def path(self, inside: str) -> str:
        """How a process of this box spells `inside` (the same, unless the sandbox cannot map paths)."""
        ...

    async def run(
        self, argv: list[str], *, log: Path, env: dict[str, str] | None = None, timeout_s: float | None = None
    ) -> Exit:
        """Run a command in `workdir` until it ends, its time is over, the disk limit is hit, or `stop`.

        Standard input is empty; output is appended to `log`. Whatever the command started is dead on return.
        """
        ...

    async def stop(self) -> None:
        """End everything in the box; a running `run` returns with `stopped`. Idempotent."""
        ...


class Sandbox(Protocol):
    """Opens boxes."""

    def check(self) -> Enforcement:
        """Try it once on this machine. Raises MachineError: what is missing and what to do."""
        ...

    def open(self, spec: BoxSpec) -> AbstractAsyncContextManager[Box]:
        """A box that is stopped, and its limits' folders removed, when the context ends."""
        ...
