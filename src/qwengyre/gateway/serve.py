"""Sockets and the HTTP server: loopback TCP and a unix socket, served as a task of the running event loop."""

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from qwengyre.errors import MachineError

_UNIX_PATH_LIMIT = 107  # bytes of sun_path on Linux, less its end
_IDLE_S = 600
"""Idle connections stay open longer than clients keep them, so that none is cut when it is used again."""


class Server:
    """Serves one ASGI application. `start` -> `stop`. It takes no signal handlers: its loop may be in any thread."""

    def __init__(self, app: ASGIApp, port: int, path: Path | None) -> None:
        self._app, self._port, self._path = app, port, path
        self._server: _Uvicorn | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Bind, serve, and return the URL. Raises MachineError naming the port or the path."""
        sockets = [_tcp(self._port)]
        if self._path is not None:
            try:
                sockets.append(_unix(self._path))
            except MachineError:
                sockets[0].close()
                raise
        port = sockets[0].getsockname()[1]
        config = uvicorn.Config(
            self._app,
            lifespan="off",
            access_log=False,  # paths hold tokens
            log_config=None,
            log_level="warning",
            ws="none",
            timeout_keep_alive=_IDLE_S,
            timeout_graceful_shutdown=1,
            server_header=False,
            date_header=False,  # uvicorn renews it by polling
        )
        self._server = _Uvicorn(config)
        self._task = asyncio.create_task(self._server.serve(sockets=sockets))
        while not self._server.started:
            if self._task.done():
                self._task.result()
                raise MachineError(f"the gateway's HTTP server on port {port} ended at its start; see the log")
            await asyncio.sleep(0.01)
        return f"http://127.0.0.1:{port}"

    async def stop(self) -> None:
        """Stop listening and cut every connection: what is in flight is not answered. Idempotent."""
        if self._server is None or self._task is None:
            return
        self._server.end()
        for connection in list(self._server.server_state.connections):
            transport = getattr(connection, "transport", None)
            if transport is not None:
                transport.abort()
        await self._task
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        self._server = None


class _Uvicorn(uvicorn.Server):
    """uvicorn without signal handlers and without polling."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ending = asyncio.Event()

    def end(self) -> None:
        self.should_exit = self.force_exit = True
        self._ending.set()

    async def main_loop(self) -> None:
        await self._ending.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _tcp(port: int) -> socket.socket:
    # asyncio turns Nagle off only where the protocol is named: else each answer waits 40 ms for an acknowledgement.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        listener.close()
        reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be opened ({error.strerror})"
        raise MachineError(
            f"gateway.port={port} on 127.0.0.1 {reason}: give another port, or 0 for a free one"
        ) from None
    return listener


def _unix(path: Path) -> socket.socket:
    if len(os.fsencode(path)) > _UNIX_PATH_LIMIT:
        raise MachineError(f"the socket path {path} is longer than {_UNIX_PATH_LIMIT} bytes: use a shorter run folder")
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(os.fspath(path))
    except OSError as error:
        listener.close()
        raise MachineError(f"the socket {path} cannot be created: {error.strerror}") from None
    path.chmod(0o600)
    return listener


def _remove_stale(path: Path) -> None:
    """A socket file that nobody serves is left by a gateway that died."""
    if not path.exists():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(os.fspath(path))
        except OSError:
            if not path.is_socket():
                raise MachineError(f"{path} is in the way: it is not a socket; remove it") from None
            path.unlink()
            return
    raise MachineError(f"the socket {path} is served by another gateway: stop it, or use another run folder")
