"""Real cells behind local hands, the real gateway over HTTP, and calls in flight when a cell leaves."""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import torch
from local_hands import LocalHand

from qwengyre.cluster.cell import Cell, CellSpec, Drained
from qwengyre.cluster.crew import Crew, Hands, Live
from qwengyre.cluster.handover import HandOver, hand_over
from qwengyre.cluster.routing import Router
from qwengyre.gateway.app import Gateway
from qwengyre.gateway.journal import read_calls
from qwengyre.gateway.render import TemplateRenderer
from qwengyre.model import load
from qwengyre.model.tiny import tiny
from qwengyre.types import ExecutionId, ModelCall, Role, Sampling

TOKENS = 96
BRAKE_S = 0.01
"""The cell that leaves takes this longer for a pass: its calls are still live when they are cut, on any machine."""
WINDOW = 512


def lively_model(folder: Path) -> Path:
    """The tiny model with larger weights: its greedy text depends on all that it has seen, and it never stops."""
    folder.mkdir()
    tiny(folder)
    model = load.causal_lm(folder)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(8)
        model.get_input_embeddings().weight[256:] = 0.0
    model.save_pretrained(folder)
    load._refresh_template(folder)
    return folder


@dataclass(frozen=True)
class Left:
    """What became of a cell's leaving."""

    handed: HandOver | None
    drained: Drained


class House:
    """Cells 0.. that roll out, and a greedy gateway. All executions begin at cell 0."""

    def __init__(self, folder: Path, run_dir: Path, cells: int, versions: Sequence[int] = ()) -> None:
        run_dir.mkdir()
        spec = [CellSpec(i, run_dir, folder, WINDOW, (), executions=64, seed=0) for i in range(cells)]
        self.cells = [Cell(s) for s in spec]
        self.hands = [LocalHand(cell) for cell in self.cells]
        self.versions = [*versions, *[3] * (cells - len(versions))]
        self.calls = run_dir / "calls"
        self.gateway = Gateway(
            folder=self.calls,
            socket=None,
            port=0,
            renderer=TemplateRenderer(load.tokenizer(folder)),
            sampling=Sampling(temperature=0.0, max_tokens=TOKENS),
            window=WINDOW,
            model="tiny",
            on_engine_lost=self._lost,
        )
        gateway = LocalHand(self.gateway)
        others: dict[str, Any] = dict.fromkeys(Hands.__dataclass_fields__)
        hands = Hands(**others | {"gateway": gateway, "cells": tuple(self.hands), "lost": ()})
        self.crew = Crew(hands, time.monotonic, lambda *_: None)
        self.router = Router(self.crew)
        self.client = httpx.AsyncClient(timeout=60, trust_env=False, limits=httpx.Limits(max_connections=None))
        self.url = ""
        self.tried: list[str] = []
        """Executions whose calls came to cell 0, in order."""

    async def start(self) -> "House":
        self.url = await self.gateway.start()
        for index, (cell, version) in enumerate(zip(self.cells, self.versions, strict=True)):
            self.crew.live[index] = Live(await cell.start(version, None), Role.ROLLOUT)
            await cell.roll(version)
        if len(self.cells) > 1:
            engine: Any = self.cells[0]._engine_
            engine._batch.step = _slowly(engine._batch.step)
            engine.generate = self._watch(engine.generate)
        return self

    async def stop(self) -> None:
        await self.client.aclose()
        await self.gateway.stop()
        for cell in self.cells:
            await cell.stop()

    def _watch(self, generate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        async def watched(call: Any) -> Any:
            self.tried.append(call.handle)
            return await generate(call)

        return watched

    async def begin(self, executions: Sequence[ExecutionId]) -> None:
        for execution in executions:
            await self.gateway.open(str(execution), f"token-{execution}")
            self.router.open(execution, 0)
        await self.router.push()

    async def ask(self, execution: ExecutionId, messages: list[dict[str, Any]], tokens: int = TOKENS) -> dict[str, Any]:
        """The choice of one call of an execution."""
        answer = await self.client.post(
            f"{self.url}/x/token-{execution}/v1/chat/completions",
            json={"model": "tiny", "messages": messages, "max_tokens": tokens},
        )
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]

    def launch(self, executions: Sequence[ExecutionId], tokens: int = TOKENS) -> list[asyncio.Task[dict[str, Any]]]:
        return [asyncio.create_task(self.ask(e, prompt(e), tokens)) for e in executions]

    async def stats(self, cell: int) -> dict[str, float]:
        return await self.cells[cell].stats()

    async def until(self, cell: int, **wanted: float) -> None:
        while True:
            stats = await self.stats(cell)
            if all(stats[name] >= value for name, value in wanted.items()):
                return
            await asyncio.sleep(0.002)

    async def leave(self, homes: dict[ExecutionId, int], kv: bool = True, limit_s: float = 600.0) -> Left:
        """Cell 0 leaves, in the order of a move to training up to the drain."""
        await self.hands[0].shut.remote()
        self.router.rehome(homes.items())
        self.crew.live[0].role = Role.TO_TRAINING
        await self.router.push()
        leaving = self.router.leaving(0)
        handed = await hand_over(self.crew, 0, leaving, limit_s) if kv else None
        return Left(handed, await self.hands[0].drain.remote())

    async def die(self, cell: int) -> None:
        """Its actor answers nothing any more, its port is gone; its executions go to the last cell."""
        self.hands[cell].kill()
        await self.cells[cell].stop()
        del self.crew.live[cell]
        last = len(self.cells) - 1
        homes = [(ExecutionId.parse(name), last) for name, home in self.router.homes.items() if home == cell]
        self.router.rehome(homes)
        await self.router.push()

    async def waiting(self, execution: ExecutionId, cell: int) -> bool:
        """Whether a call of the execution is at `cell` now."""
        return any(c["execution"] == str(execution) and c["cell"] == cell for c in await self.gateway.live())

    def recorded(self, execution: ExecutionId) -> tuple[ModelCall, ...]:
        """Its calls, from the journal."""
        return read_calls(self.calls / f"{execution}.calls").calls

    async def _lost(self, cell: int, incarnation: int, reason: str) -> None:
        await self.router.push()


def _slowly(step: Callable[[], None]) -> Callable[[], None]:
    def braked() -> None:
        time.sleep(BRAKE_S)
        step()

    return braked


def prompt(execution: ExecutionId) -> list[dict[str, Any]]:
    """Different from the first character of the text on."""
    text = "".join(random.Random(execution.member).choices("abcdefghijklmnopqrstuvwxyz ", k=80))
    return [{"role": "user", "content": text}]


def executions(count: int) -> list[ExecutionId]:
    return [ExecutionId(0, member) for member in range(count)]
