"""Real cells behind local hands, under the real `Training`; groups and books are the least that it needs."""

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from local_hands import LocalHand

from qwengyre.cluster.cell import Cell, CellSpec
from qwengyre.cluster.crew import Crew, Hands, Live
from qwengyre.cluster.record import GroupSummary
from qwengyre.cluster.training import Training
from qwengyre.model import load
from qwengyre.schedule import events as ev
from qwengyre.trainer.lora import Lora
from qwengyre.trainer.torch import TorchTrainer
from qwengyre.types import MicroStep, Role

LEARNING_RATE = 1e-2


def micro_step(name: str, lengths: tuple[int, ...] = (24,), seed: int | None = None) -> MicroStep:
    """Random tokens; the later half of each sequence are targets, recorded near the tiny model's log-probability."""
    rng = np.random.default_rng(abs(hash(name)) % 2**32 if seed is None else seed)
    weights = np.concatenate([np.where(np.arange(n) >= n // 2, rng.normal(), 0.0) for n in lengths])
    total = sum(lengths)
    recorded = -5.55 + 0.3 * rng.standard_normal(total)
    return MicroStep(
        name,
        int(name[1:].split(".")[0]),
        rng.integers(0, 256, total).astype(np.int32),
        lengths,
        weights.astype(np.float32),
        recorded.astype(np.float32),
        1.0,
    )


def group(index: int, count: int, lengths: tuple[int, ...] = (24,)) -> list[MicroStep]:
    """`count` micro-steps of a group."""
    return [micro_step(f"g{index}.{k}", lengths, seed=100 * index + k) for k in range(count)]


class Data:
    """In the place of `Groups`: ready-made micro-steps."""

    def __init__(self) -> None:
        self.groups: dict[int, list[MicroStep]] = {}

    async def weigh(self, group: int, *, admitted: bool = False) -> list[MicroStep]:
        return self.groups[group]

    def summary(self, group: int, dispatched_steps: int) -> GroupSummary:
        return GroupSummary(group, dispatched_steps, (0.0, 1.0), 0, 1, 1, 1)

    def forget(self, group: int) -> None:
        pass


class Books:
    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def learning_rate(self, step: int) -> float:
        return LEARNING_RATE

    def born(self, group: int) -> int:
        return 0

    def closed(self, record: Any) -> None:
        self.rows.append(record.row())

    def checkpoint_for(self, version: int, steps: int) -> None:
        return None


class Fleet:
    """`count` started cells that roll out; `losses` are what a feed reported."""

    def __init__(self, run_dir: Path, count: int, lora: Lora | None = None) -> None:
        self._lora = lora
        folder = load.resolve("tiny")
        self.folder = folder
        self._spec = CellSpec(0, run_dir, folder, 256, load.eos_ids(folder), executions=8, seed=0)
        self.hands = [LocalHand(self._cell(index)) for index in range(count)]
        self._grave: list[Cell] = []
        self.events: list[ev.Event] = []
        self._heard = asyncio.Event()
        hands: dict[str, Any] = {name: None for name in Hands.__dataclass_fields__ if name not in ("cells", "lost")}
        self.crew = Crew(Hands(cells=tuple(self.hands), **hands), lambda: 0.0, self._report)
        self.data, self.books = Data(), Books()
        self.losses: list[tuple[int, int, str]] = []
        self.training = Training(self.crew, self.data, self.books, self._lost)  # type: ignore[arg-type]

    async def start(self) -> "Fleet":
        for index in range(len(self.hands)):
            await self.up(index)
        return self

    async def stop(self) -> None:
        for live in self.crew.live.values():
            if live.feed is not None:
                live.feed.cancel()
        await asyncio.gather(*(cell.stop() for cell in [*self._grave, *(hand.target for hand in self.hands)]))

    def cell(self, index: int) -> Cell:
        return self.hands[index].target

    @property
    def ledger(self) -> Any:
        return self.training.ledger

    async def up(self, index: int) -> None:
        """Start a cell and let it roll out."""
        report = await self.hands[index].start.remote(self.crew.version, None)
        self.crew.live[index] = Live(report, Role.ROLLOUT)
        await self.roll(index)

    async def roll(self, index: int) -> None:
        snapshot = await self.training.served(index)
        await self.hands[index].roll.remote(self.crew.version, snapshot)
        self.crew.live[index].role = Role.ROLLOUT

    async def join(self, index: int) -> None:
        """A move to training."""
        hand, live = self.hands[index], self.crew.live[index]
        live.role = Role.TO_TRAINING
        await hand.shut.remote()
        await hand.drain.remote()
        await self.training.wake(index)
        live.role = Role.TRAINING
        live.feed = asyncio.create_task(self.training.feed(index))

    async def leave(self, index: int) -> None:
        """A move to rollout."""
        await self.training.stop_feeding(self.crew.live[index])
        await self.roll(index)

    async def lose(self, index: int) -> int:
        """The process dies and control learns of it."""
        self.hands[index].kill()
        return await self.training.forget(self.crew.live.pop(index))

    async def restart(self, index: int) -> None:
        self._grave.append(self.cell(index))
        self.hands[index].restart(self._cell(index))
        await self.up(index)

    async def open(self, step: int, groups: dict[int, list[MicroStep]]) -> None:
        self.training.open(step)
        await self.admit(step, groups)

    async def admit(self, step: int, groups: dict[int, list[MicroStep]]) -> None:
        self.data.groups |= groups
        for index in groups:
            await self.training.admit(index, step)

    async def until(self, kind: type[ev.Event], **fields: Any) -> ev.Event:
        """Wait for (or find) such an event."""
        while True:
            for event in self.events:
                if isinstance(event, kind) and all(getattr(event, k) == v for k, v in fields.items()):
                    return event
            self._heard.clear()
            async with asyncio.timeout(30):
                await self._heard.wait()

    async def trained(self, step: int, micro_steps: int) -> None:
        """Every micro-step is counted."""
        await self.until(ev.Backlog, step=step, pending=0, claimed=0, counted=micro_steps)

    async def lost(self) -> None:
        """Until a feed reports a loss."""
        while not self.losses:
            self._heard.clear()
            async with asyncio.timeout(30):
                await self._heard.wait()

    def accumulated(self) -> Counter[str]:
        """Names that any cell was asked to accumulate."""
        return Counter(args[0].name for hand in self.hands for name, args, _ in hand.calls if name == "accumulate")

    def gradient(self, index: int = 0) -> torch.Tensor:
        return flat(self.cell(index)._trainer_.gradient())

    def weights(self, index: int) -> torch.Tensor:
        return flat(self.cell(index)._trainer_.parameters())

    def expected(self, micro_steps: list[MicroStep]) -> torch.Tensor:
        """The gradient by one trainer, with the core's weights of now, in order."""
        trainer = TorchTrainer(load.causal_lm(self.folder), optimizer=False, lora=self._lora)
        for name, parameter in self.cell(0)._trainer_.parameters().items():
            trainer.parameters()[name].detach().copy_(parameter.detach())
        for each in micro_steps:
            trainer.accumulate(each)
        return flat(trainer.gradient())

    def _cell(self, index: int) -> Cell:
        args = {"optimizer": index == 0, "source": self.folder, "lora": self._lora}
        return Cell(replace(self._spec, index=index, trainer_args=args))

    def _lost(self, *loss: Any) -> None:
        self.losses.append(loss)
        self._heard.set()

    def _report(self, event: Any, *fields: Any) -> None:
        self.events.append(event(0.0, *fields))
        self._heard.set()


def flat(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([t.detach().double().flatten() for _, t in sorted(tensors.items())])


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Norm of the difference over the norm."""
    return float((a - b).norm() / b.norm())
