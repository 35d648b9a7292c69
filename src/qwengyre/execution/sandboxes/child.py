"""One operating-system process in an event loop, watched through its pidfd: any loop, any thread, no child watcher."""

import asyncio
import contextlib
import errno
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path


class Child:
    """A started process in a session of its own. Start it in the thread of the running loop: a process that is to die
    with its parent dies with the *thread* that made it."""

    def __init__(self, argv: Sequence[str], *, env: dict[str, str], log: Path, cwd: Path, fds: Sequence[int] = ()):
        """Standard input is empty; output is appended to `log`; `fds` stay open under their own numbers.

        Raises OSError when it cannot start.
        """
        if any("\0" in word for word in (*argv, *env, *env.values())):
            raise OSError(errno.EINVAL, "a NUL byte in a command or its environment")
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                list(argv),
                env=env,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=tuple(fds),
                start_new_session=True,
            )
        self.pid = self._process.pid
        self.over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """Done with the exit status, negative after a signal."""
        self._watch()

    def kill(self) -> None:
        """SIGKILL; nothing when it is over."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        if not hasattr(os, "pidfd_open"):  # not Linux: the process sandbox of a developer
            self._poll(loop)
            return
        fd = os.pidfd_open(self.pid)

        def ended() -> None:
            loop.remove_reader(fd)
            os.close(fd)
            self.over.set_result(self._process.wait())

        loop.add_reader(fd, ended)

    def _poll(self, loop: asyncio.AbstractEventLoop) -> None:
        code = self._process.poll()
        if code is None:
            loop.call_later(0.05, self._poll, loop)
        else:
            self.over.set_result(code)
