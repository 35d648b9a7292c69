"""Boxes, tasks and a scripted model for the execution tests. Everything real: bwrap, processes, sockets."""

import contextlib
import json
import os
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from qwengyre.execution.harnesses.base import Harness
from qwengyre.execution.runner import Runner
from qwengyre.execution.sandboxes.bwrap import BwrapSandbox
from qwengyre.types import Limits, Query

LIMITS = Limits(agent_s=30, overall_s=60, verifier_s=20, memory_mb=256, pids=64, disk_mb=32)


@pytest.fixture
def limits() -> Limits:
    return LIMITS


@dataclass
class Script:
    """A model that answers what it is told: each reply is (text or tool calls, finish reason)."""

    replies: list[tuple[Any, str]]
    requests: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)

    def answer(self, path: str, key: str, body: dict[str, Any]) -> dict[str, Any] | int:
        """The body of the answer, or an HTTP status."""
        self.requests.append(body)
        self.paths.append(path)
        self.keys.append(key)
        content, finish = self.replies[min(len(self.requests), len(self.replies)) - 1]
        if isinstance(content, int):
            return content
        message = {"role": "assistant", "content": content} if isinstance(content, str) else content
        return {"choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": {}}


class _UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[list[tuple[Any, str]]], tuple[Script, Path]]]:
    """Serve replies on a unix socket in a folder of its own; returns the script that records, and the socket."""
    with contextlib.ExitStack() as stack:

        def start(replies: list[tuple[Any, str]]) -> tuple[Script, Path]:
            script = Script(replies)

            class Handler(BaseHTTPRequestHandler):
                def do_POST(self) -> None:
                    body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                    answer = script.answer(self.path, self.headers["Authorization"], body)
                    data = json.dumps(answer).encode()
                    self.send_response(answer if isinstance(answer, int) else 200)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)

                def log_message(self, *words: object) -> None:
                    pass

                def address_string(self) -> str:
                    return "unix"

            folder = tmp_path / "gateway"
            folder.mkdir(exist_ok=True)
            (folder / "gateway.sock").unlink(missing_ok=True)
            server = stack.enter_context(_UnixServer(str(folder / "gateway.sock"), Handler))
            stack.callback(server.shutdown)
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
            return script, folder / "gateway.sock"

        yield start


@pytest.fixture
def task(tmp_path: Path) -> Callable[..., Query]:
    """A query of our own: `grade` is the text of tests/test.sh, `files` the environment."""

    def make(grade: str, *, files: dict[str, str] | None = None, **changes: Any) -> Query:
        tests, environment = tmp_path / "task" / "tests", tmp_path / "task" / "environment"
        tests.mkdir(parents=True, exist_ok=True)
        environment.mkdir(exist_ok=True)
        (tests / "test.sh").write_text(grade)
        (tests / "test.sh").chmod(0o755)
        for name, text in (files or {}).items():
            (environment / name).parent.mkdir(parents=True, exist_ok=True)
            (environment / name).write_text(text)
        query = Query(
            name="ours",
            instruction="Do it.",
            image="",
            workdir="/app",
            environment=str(environment),
            tests=str(tests),
            limits=LIMITS,
        )
        return replace(query, **changes)

    return make


@pytest.fixture
def runner(tmp_path: Path) -> Callable[..., Runner]:
    """A runner on real bwrap boxes."""

    def make(harness: Harness, **changes: Any) -> Runner:
        run_id = f"test{os.getpid()}"
        values: dict[str, Any] = {
            "run_id": run_id,
            "folder": tmp_path / "executions",
            "scratch": tmp_path / "scratch",
            "harness": harness,
            "sandbox": BwrapSandbox(run_id=run_id, scratch=tmp_path / "scratch"),
            "images": {},
            "retries": 2,
            "concurrent_verifiers": 2,
            "model": "policy",
        }
        return Runner(**{**values, **changes})

    return make


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Path]:
    """A socket that is there and never answers."""
    folder = tmp_path / "silent"
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "gateway.sock"))
        server.listen()
        yield folder / "gateway.sock"


async def never_queued() -> float:
    return 0.0


@pytest.fixture
def not_queued() -> Callable[[], Any]:
    return never_queued
