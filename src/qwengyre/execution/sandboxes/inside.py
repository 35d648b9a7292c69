"""Runs inside the box as `python -I -S inside.py`: the way to the gateway, then the command. Stdlib only.

inside.py SOCKET LISTEN PIDS -- COMMAND...

Forwards TCP to the unix socket SOCKET and exits as the command does (128 + n after signal n). LISTEN is a port on the
loopback, or `fd:N`, an inherited listening socket; "" for none. PIDS sets a limit on processes (0: none). Each
connection opens the socket's path anew, for up to 10 s, so a gateway that restarts is found again.
"""

import contextlib
import functools
import os
import resource
import socket
import subprocess
import sys
import threading
import time

PATIENCE_S = 10.0


def listen(where: str) -> socket.socket:
    """A listening TCP socket on the loopback, ours or inherited."""
    if where.startswith("fd:"):
        return socket.socket(fileno=int(where[3:]))
    server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("127.0.0.1", int(where)))
    server.listen(128)
    return server


def reach(path: str) -> socket.socket:
    """A connection to the gateway; waits while there is none. Raises OSError after PATIENCE_S."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            door.connect(path)
        except OSError:
            door.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return door


def pump(source: socket.socket, sink: socket.socket) -> None:
    """Copy bytes one way until the end, and pass the end on."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def serve(client: socket.socket, path: str) -> None:
    """One connection, both ways, to its end."""
    with client, contextlib.suppress(OSError), reach(path) as door:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # an answer in pieces does not wait
        back = threading.Thread(target=pump, args=(door, client), daemon=True)
        back.start()
        pump(client, door)
        back.join()


def accept(server: socket.socket, path: str) -> None:
    """Consumes connections until the box is stopped."""
    while True:
        try:
            client, _ = server.accept()
        except OSError:
            time.sleep(0.1)
            continue
        threading.Thread(target=serve, args=(client, path), daemon=True).start()


def main(words: list[str]) -> int:
    """The command's exit status; 126 when it cannot be started."""
    path, where, pids, _, *command = words
    server = listen(where) if where else None
    # The command starts before the first thread: between fork and exec nothing else may hold a lock.
    limit = functools.partial(resource.setrlimit, resource.RLIMIT_NPROC, (int(pids), int(pids))) if int(pids) else None
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=limit)
    except (OSError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"{command[0]}: {error}\n")
        return 126
    if server is not None:
        threading.Thread(target=accept, args=(server, path), daemon=True).start()
    code = child.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # without waiting for the forwarder's threads
