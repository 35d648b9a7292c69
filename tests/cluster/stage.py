"""A run's moving parts without Ray: real cells, the real gateway, moves, routes, training. For tests of moves."""

import asyncio
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from local_hands import DeadError, LocalHand

from qwengyre.cluster.cell import Cell, CellSpec
from qwengyre.cluster.crew import Crew, Hands
from qwengyre.cluster.executions import Executions
from qwengyre.cluster.moves import Moves
from qwengyre.cluster.record import MoveRecord, StepRecord
from qwengyre.cluster.routing import Router
from qwengyre.cluster.training import Training
from qwengyre.gateway.app import Gateway
from qwengyre.gateway.journal import CallLog, read_calls
from qwengyre.gateway.render import TemplateRenderer
from qwengyre.model import load
from qwengyre.schedule import events as ev
from qwengyre.types import Ending, ExecutionId, MicroStep, Query, Role, Sampling, Settlement, Verdict

WINDOW = 1024


class Ledgers:
    """`Books` of a run that keeps nothing but its moves."""

    def __init__(self) -> None:
        self.moves: list[MoveRecord] = []

    def learning_rate(self, step: int) -> float:
        return 1e-2

    def temperature_of(self, execution: ExecutionId) -> None: ...

    def query_of(self, execution: ExecutionId) -> Query:
        return Query(f"task {execution.group}", "", "", "/app", "", "", limits=None)  # type: ignore[arg-type]

    def born(self, group: int) -> int:
        return 0

    def note(self, execution: ExecutionId, ending: Ending, settlement: Settlement) -> None: ...

    def closed(self, record: StepRecord) -> None: ...

    def moved(self, record: MoveRecord) -> None:
        self.moves.append(record)

    def checkpoint_for(self, version: int, steps: int) -> None: ...

    def completed(self, checkpoint: Any, seconds: float) -> None: ...


class PaperBox:
    """A box whose harnesses are the test: `run` ends when the test says so."""

    incarnation = 0

    def __init__(self) -> None:
        self.ends: dict[str, asyncio.Future[Ending]] = {}

    def end(self, execution: str, ending: Ending = Ending.FINISHED) -> None:
        self._future(execution).set_result(ending)

    async def run(self, execution: str, query: Query, token: str, *_: Any) -> Ending:
        return await self._future(execution)

    async def settle(self, execution: str, query: Query, ending: Ending) -> Settlement:
        return Settlement(Verdict.SCORED, 1.0)

    def _future(self, execution: str) -> "asyncio.Future[Ending]":
        return self.ends.setdefault(execution, asyncio.get_running_loop().create_future())


class Stage:
    """`open` -> `begin`, `ask`, `move` ... -> `close`. Greedy by default, so that texts can be compared."""

    def __init__(self, folder: Path, model: Path, cells: int, temperature: float = 0.0) -> None:
        eos = load.eos_ids(model)
        self.folder = folder
        self.cells = [
            LocalHand(Cell(CellSpec(i, folder, model, WINDOW, eos, executions=64, seed=0))) for i in range(cells)
        ]
        self.app = Gateway(
            folder=folder / "calls", socket=None, port=0, renderer=TemplateRenderer(load.tokenizer(model)),
            sampling=Sampling(temperature, 512), window=WINDOW, model="tiny", on_engine_lost=self._silent, seed=0,
        )  # fmt: skip
        self.gateway, self.box = LocalHand(self.app), PaperBox()
        self.events: list[ev.Event] = []
        self.lost: list[tuple[int, int, str]] = []
        self.silent: list[tuple[int, int, str]] = []
        self.failed: list[BaseException] = []
        self.books = Ledgers()
        hands = Hands(None, self.gateway, LocalHand(self.box), tuple(self.cells), (DeadError,))
        self.crew = Crew(
            hands, time.monotonic, lambda kind, *fields: self.events.append(kind(time.monotonic(), *fields))
        )
        self.crew.box = 0
        self.crew.boxed.set()
        self.router = Router(self.crew)
        lost: Callable[[int, int, str], None] = lambda *what: self.lost.append(what)  # noqa: E731
        self.training = Training(self.crew, None, self.books, lost)  # type: ignore[arg-type]
        self.moves = Moves(self.crew, self.router, self.training, self.books, self._over, lost)
        self.executions = Executions(self.crew, self.router, self.books)
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.client = httpx.AsyncClient(timeout=60, trust_env=False)

    async def open(self) -> "Stage":
        self.url = await self.app.start()
        for hand in self.cells:
            await self.moves.join(await hand.start.remote(0, None))
        self.open_step(0)
        return self

    async def close(self) -> None:
        feeds = [live.feed for live in self.crew.live.values() if live.feed is not None]
        for task in [*self.tasks.values(), *feeds]:
            task.cancel()
        await asyncio.gather(*self.tasks.values(), *feeds, return_exceptions=True)
        await self.client.aclose()
        await self.app.stop()
        for hand in self.cells:
            await hand.target.stop()

    def open_step(self, step: int) -> None:
        self.training.open(step)

    async def begin(self, execution: str, cell: int) -> None:
        """The execution runs with its home at `cell`, until `box.end` or the end of the test."""
        name = ExecutionId.parse(execution)
        token = f"token-{execution}"
        self.router.open(name, cell)
        await self.app.open(execution, token)
        await self.router.push()

    async def ask(self, execution: str, text: str = "Go.", tokens: int = 64) -> dict[str, Any]:
        """One call of the execution's harness: the answer's choice and usage. AssertionError for any other answer."""
        body = {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": tokens}
        answer = await self.client.post(f"{self.url}/x/token-{execution}/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def move(self, cell: int, role: Role, **homes: int) -> MoveRecord:
        """Rehome and Move, as the scheduler asks them together. `homes`: x0_1=1 sends execution 0-1 to cell 1."""
        self.router.rehome([(ExecutionId.parse(n[1:].replace("_", "-")), c) for n, c in homes.items()])
        await asyncio.gather(self.router.push(), self.moves.become(cell, role, -1))
        return self.books.moves[-1]

    async def until_tokens(self, cell: int, count: int) -> None:
        """Wait until the engine of `cell` has sampled `count` tokens in all."""
        await self.until(lambda stats: stats["decode_tokens"] >= count, cell)

    async def until(self, true: Callable[[dict[str, float]], bool], cell: int) -> None:
        async with asyncio.timeout(30):
            while not true(await self.cells[cell].target.stats()):
                await asyncio.sleep(0.002)  # nothing tells of a token: the engine answers when a call is over

    async def until_counted(self, count: int) -> None:
        """Wait until the gradients of `count` micro-steps lie at the core."""
        await self._until(lambda: len(self.training.ledger.counted) >= count)

    async def until_event(self, kind: type[ev.Event]) -> None:
        await self._until(lambda: bool(self.of(kind)))

    async def until_state(self, execution: str, state: str) -> None:
        """Wait until the execution's calls are in `state`."""
        async with asyncio.timeout(30):
            while {c["state"] for c in await self.app.live() if c["execution"] == execution} != {state}:
                await asyncio.sleep(0.002)

    @staticmethod
    async def _until(true: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not true():
                await asyncio.sleep(0.002)

    async def log(self, execution: str) -> CallLog:
        """The execution's journal, sealed first."""
        await self.app.seal(execution)
        return read_calls(self.folder / "calls" / f"{execution}.calls")

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    async def _silent(self, cell: int, incarnation: int, reason: str) -> None:
        self.silent.append((cell, incarnation, reason))

    def _report(self, kind: type[ev.Event], *fields: Any) -> None:
        self.events.append(kind(time.monotonic(), *fields))

    def _over(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failed.append(error)


def lively_model(folder: Path) -> Path:
    """The tiny model with weights so large that its greedy text wanders, instead of repeating one token; it never
    ends by itself."""
    import torch

    shutil.copytree(load.resolve("tiny"), folder)
    model = load.causal_lm(folder)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(8.0)
        model.get_input_embeddings().weight[list(load.eos_ids(folder))] = 0.0
    model.save_pretrained(folder)
    return folder


def text_of(answer: dict[str, Any]) -> str:
    return answer["choices"][0]["message"]["content"]


def a_micro_step(name: str = "g0.0") -> MicroStep:
    ids = np.arange(10, 26, dtype=np.int32)
    weights = np.r_[0.0, np.full(15, 0.1)].astype(np.float32)
    return MicroStep(name, 0, ids, (16,), weights, np.full(16, -5.0, np.float32), 1.0)
