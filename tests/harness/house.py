"""A real harness, the real gateway, the real verifier and scripted engines in one process, no cluster: whole sessions
in seconds.

found = await session(Task(tmp_path, "codex", script, "Create a folder named yarn.", {"log.txt": "done\n"}))
"""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from starlette.requests import Request

from qwengyre import profiles
from qwengyre.engine.scripted import ScriptedEngine
from qwengyre.execution.harnesses import install
from qwengyre.execution.harnesses.build import build
from qwengyre.execution.runner import Runner
from qwengyre.execution.sandboxes.build import build as sandbox
from qwengyre.gateway.app import Gateway
from qwengyre.gateway.journal import CallLog, read_calls, rebuild
from qwengyre.gateway.render import TemplateRenderer
from qwengyre.gateway.session import Session as Served
from qwengyre.model import load
from qwengyre.trajectory.roles import LeafRole, Table, roles
from qwengyre.trajectory.tree import Tree
from qwengyre.types import Ending, Limits, Place, Query, Routes, Sampling, Settlement

WINDOW = 200_000
EXECUTION, TOKEN = "0-0", "token-of-the-execution"
GRADE = """
import json, os, pathlib
app, logs = pathlib.Path(os.environ["TASK_WORKDIR"]), pathlib.Path(os.environ["TASK_LOGS"])
wanted = json.loads(pathlib.Path(os.environ["TASK_TESTS"], "expected.json").read_text())
there = {p.name: p.read_text() if p.is_file() else "" for p in app.iterdir() if not p.name.startswith(".")}
right = sum(there.get(name) == text for name, text in wanted.items())
(logs / "reward.json").write_text(json.dumps({"passed": right, "total": len(wanted.keys() | there.keys())}))
"""
"""Each wanted file holds its text, a folder none; whatever else is there counts against it."""


@dataclass(frozen=True)
class Task:
    """A harness and what it is asked. `script` as in `engine.args`, or the text of its rules. `expected`: what is to be
    in the workspace afterwards. `args` and `files` as in `[harness]`."""

    folder: Path
    kind: str
    script: str
    instruction: str
    expected: dict[str, str]
    args: dict[str, Any] = field(default_factory=dict[str, Any])
    files: dict[str, str] = field(default_factory=dict[str, str])
    window: int = WINDOW

    @property
    def source(self) -> str:
        """The script, in a file where it is a text."""
        if "\n" not in self.script:
            return self.script
        (self.folder / "script.toml").write_text(self.script)
        return str(self.folder / "script.toml")

    @property
    def query(self) -> Query:
        """A task folder, as a task set would read it."""
        for name in ("environment", "tests"):
            (self.folder / name).mkdir()
        (self.folder / "tests" / "expected.json").write_text(json.dumps(self.expected))
        (self.folder / "tests" / "grade.py").write_text(GRADE)
        (self.folder / "tests" / "test.sh").write_text('python3 "$TASK_TESTS/grade.py"\n')
        return Query(
            name="q",
            instruction=self.instruction,
            image="",
            workdir="/app",
            environment=str(self.folder / "environment"),
            tests=str(self.folder / "tests"),
            limits=Limits(agent_s=900, overall_s=900, verifier_s=60, memory_mb=3072, pids=256, disk_mb=256),
        )


@dataclass(frozen=True)
class Session:
    """What became of one execution."""

    ending: Ending
    settled: Settlement
    work: Path
    tree: Tree
    log: CallLog
    said: str
    """What the harness printed."""
    requests: tuple[str, ...]
    """Paths of the requests that the gateway was asked with the execution's token."""
    table: Table

    @property
    def rows(self) -> list[int]:
        """The sampled row of each call, in the order of the calls."""
        sampled = {self.tree.calls[row]: row for row in self.tree.versions}
        return [sampled[call.call] for call in self.log.calls]

    @property
    def roles(self) -> dict[int, LeafRole]:
        """Role and evidence of each leaf."""
        return roles(self.tree, self.log.calls, self.table)


class Door(Gateway):
    """The gateway, which also counts what it is asked."""

    def __init__(self, **args: Any) -> None:
        super().__init__(**args)
        self.requests: list[str] = []

    def _session(self, request: Request) -> Served:
        self.requests.append(request.url.path.partition(TOKEN)[2] or request.url.path)
        return super()._session(request)


class Where(Protocol):
    """Where calls go, and what happens to them there."""

    async def begin(self, task: Task, door: Door) -> None:
        """Start engines and give the door its first routes."""
        ...

    async def lost(self, cell: int, incarnation: int, reason: str) -> None:
        """The gateway got no usable answer from an engine."""
        ...

    async def end(self) -> None:
        """Stop them."""
        ...


class OneEngine:
    """The quiet place: one engine that lives as long as the session."""

    def __init__(self) -> None:
        self._engine: ScriptedEngine | None = None

    async def begin(self, task: Task, door: Door) -> None:
        """See `Where`."""
        self._engine = ScriptedEngine(**engine_args(task.source, task.window, "cell0.0"))
        url = await self._engine.start()
        await self._engine.open()
        await door.route(Routes(1, {0: Place(url, 0)}, {EXECUTION: 0}))

    async def lost(self, cell: int, incarnation: int, reason: str) -> None:
        """See `Where`."""
        raise AssertionError(f"cell {cell}.{incarnation}: {reason}")

    async def end(self) -> None:
        """See `Where`."""
        if self._engine is not None:
            await self._engine.stop()


def engine_args(script: str, window: int, name: str) -> dict[str, Any]:
    """What a scripted engine over `tiny-long` is made of."""
    torch.set_num_threads(1)
    model = load.resolve("tiny-long")
    return {
        "model": load.causal_lm(model),
        "script": script,
        "tokenizer": str(model),
        "name": name,
        "eos_ids": load.eos_ids(model),
        "window": window,
        "version": 1,
    }


@asynccontextmanager
async def gateway(task: Task, place: Where) -> AsyncIterator[tuple[Door, Path]]:
    """The gateway over the place, and its socket."""
    socket = task.folder / "g" / "gateway.sock"
    socket.parent.mkdir(parents=True)
    door = Door(
        folder=task.folder / "calls",
        socket=socket,
        port=0,
        renderer=TemplateRenderer(load.tokenizer(load.resolve("tiny-long"))),
        sampling=Sampling(temperature=1.0, max_tokens=4096),
        window=task.window,
        model="policy",
        on_engine_lost=place.lost,
    )
    async with AsyncExitStack() as stack:
        stack.push_async_callback(place.end)
        await door.start()
        stack.push_async_callback(door.stop)
        await place.begin(task, door)
        yield door, socket


async def session(task: Task, place: Where | None = None) -> Session:
    """Run one execution to its end, freeze what it left and grade it."""
    await asyncio.to_thread(install.install, profiles.read(task.kind))
    query, folder = task.query, task.folder
    name = f"house-{uuid.uuid4().hex[:8]}"
    async with gateway(task, place or OneEngine()) as (door, socket):
        await door.open(EXECUTION, TOKEN)
        runner = Runner(
            run_id=name,
            folder=folder / "executions",
            scratch=folder / "scratch",
            harness=build(task.kind, args=task.args, files=task.files),
            sandbox=sandbox("bwrap", run_id=name, scratch=folder / "scratch"),
            images={},
            retries=0,
            concurrent_verifiers=1,
            model="policy",
        )
        ending = await runner.run(
            EXECUTION, query, token=TOKEN, socket=socket, queued_s=lambda: door.queued_s(EXECUTION)
        )
        await door.seal(EXECUTION)
    settled = await runner.settle(EXECUTION, query, ending)
    left, journal = folder / "executions" / EXECUTION, folder / "calls" / f"{EXECUTION}.calls"
    said = (left / "harness.log").read_text()
    print(ending, settled, said[-4000:], sep="\n")  # shown where a test fails
    return Session(
        ending,
        settled,
        left / "work",
        rebuild(journal),
        read_calls(journal),
        said,
        tuple(door.requests),
        Table.of(profiles.told(task.kind)),
    )


def finished(found: Session, refused: int = 0) -> None:
    """It ended by itself, with score 1; each call was delivered, and asked for once. `refused`: requests besides that
    were too long for the window."""
    assert found.ending is Ending.FINISHED, found.said[-3000:]
    assert found.settled.score == 1.0, (found.settled, found.said[-3000:])
    assert found.log.sealed
    assert found.log.delivered == {call.call for call in found.log.calls}
    posted = [path for path in found.requests if "models" not in path and "count_tokens" not in path]
    assert len(posted) == len(found.log.calls) + refused, found.requests
