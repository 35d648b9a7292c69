"""A real harness, the real gateway and the scripted engine in one process, no cluster: whole sessions in seconds.

found = await session(tmp_path, "codex", script, "Create a folder named yarn.")
"""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from qwengyre import profiles
from qwengyre.engine.scripted import ScriptedEngine
from qwengyre.execution.harnesses import install
from qwengyre.execution.harnesses.build import build
from qwengyre.execution.runner import Runner
from qwengyre.execution.sandboxes.build import build as sandbox
from qwengyre.gateway.app import Gateway
from qwengyre.gateway.journal import CallLog, read_calls, rebuild
from qwengyre.gateway.render import TemplateRenderer
from qwengyre.model import load
from qwengyre.trajectory.roles import LeafRole, roles
from qwengyre.trajectory.tree import Tree
from qwengyre.types import Ending, Limits, Place, Query, Routes, Sampling

WINDOW = 200_000


@dataclass(frozen=True)
class Session:
    """What became of one execution."""

    ending: Ending
    work: Path
    tree: Tree
    log: CallLog
    said: str
    """What the harness printed."""

    @property
    def rows(self) -> list[int]:
        """The sampled row of each call, in the order of the calls."""
        sampled = {self.tree.calls[row]: row for row in self.tree.versions}
        return [sampled[call.call] for call in self.log.calls]

    @property
    def roles(self) -> dict[int, LeafRole]:
        """Role and evidence of each leaf."""
        return roles(self.tree, self.log.calls)


@asynccontextmanager
async def gateway(folder: Path, script: str, window: int) -> AsyncIterator[tuple[Gateway, Path]]:
    """The gateway over a scripted engine, and its socket."""
    torch.set_num_threads(1)
    model = load.resolve("tiny-long")
    engine = ScriptedEngine(
        load.causal_lm(model),
        script=script,
        tokenizer=str(model),
        name="cell0.0",
        eos_ids=load.eos_ids(model),
        window=window,
        version=1,
    )
    socket = folder / "g" / "gateway.sock"
    socket.parent.mkdir(parents=True)
    made = Gateway(
        folder=folder / "calls",
        socket=socket,
        port=0,
        renderer=TemplateRenderer(load.tokenizer(model)),
        sampling=Sampling(temperature=1.0, max_tokens=4096),
        window=window,
        model="policy",
    )
    url = await engine.start()
    await engine.open()
    await made.start()
    try:
        await made.route(Routes(1, {0: Place(url, 0)}, {"0-0": 0}))
        yield made, socket
    finally:
        await made.stop()
        await engine.stop()


async def session(
    folder: Path,
    kind: str,
    script: str,
    instruction: str,
    *,
    args: dict[str, Any] | None = None,
    window: int = WINDOW,
) -> Session:
    """Run one execution of `kind` to its end. `script` as in `engine.args`; a text of rules is written to a file."""
    await asyncio.to_thread(install.install, profiles.read(kind))
    if "\n" in script:
        (folder / "script.toml").write_text(script)
        script = str(folder / "script.toml")
    for name in ("environment", "tests"):
        (folder / name).mkdir()
    limits = Limits(agent_s=240, overall_s=240, verifier_s=60, memory_mb=3072, pids=256, disk_mb=256)
    query = Query(
        name="q",
        instruction=instruction,
        image="",
        workdir="/app",
        environment=str(folder / "environment"),
        tests=str(folder / "tests"),
        limits=limits,
    )
    async with gateway(folder, script, window) as (door, socket):
        await door.open("0-0", "token-of-the-execution")
        name = f"house-{uuid.uuid4().hex[:8]}"
        runner = Runner(
            run_id=name,
            folder=folder / "executions",
            scratch=folder / "scratch",
            harness=build(kind, args=args or {}),
            sandbox=sandbox("bwrap", run_id=name, scratch=folder / "scratch"),
            images={},
            retries=0,
            concurrent_verifiers=1,
            model="policy",
        )
        ending = await runner.run(
            "0-0", query, token="token-of-the-execution", socket=socket, queued_s=lambda: door.queued_s("0-0")
        )
        await door.seal("0-0")
        await runner.freeze("0-0", query)
    place, journal = folder / "executions" / "0-0", folder / "calls" / "0-0.calls"
    return Session(ending, place / "work", rebuild(journal), read_calls(journal), (place / "harness.log").read_text())
