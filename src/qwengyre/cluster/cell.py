"""A cell: one engine and one trainer on the same devices, and the steps by which it changes its role.

A plain class, testable without Ray: `cluster/ray.py` makes it an actor. Control orders the steps of a transition
(`control.py`, `_move`); each step here is idempotent. Engine and trainer share one parameter set, so the engine is
asleep while the trainer is awake. Blocking work runs in the cell's one worker thread, never in the event loop.
"""

import asyncio
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from qwengyre.engine.base import Engine
from qwengyre.plugin import named
from qwengyre.trainer.base import Trainer
from qwengyre.types import MicroStep

R = TypeVar("R")

ENGINES = {"embedded": "qwengyre.engine.embedded:EmbeddedEngine"}
TRAINERS = {"torch": "qwengyre.trainer.torch:TorchTrainer"}


@dataclass(frozen=True)
class CellSpec:
    """What a cell is made of; the arguments of its constructor, replayed at a restart."""

    index: int
    run_dir: Path
    model: Path
    """The HF folder whose configuration and tokenizer the run uses."""
    window: int
    eos_ids: tuple[int, ...]
    executions: int
    seed: int
    chat_template: str = ""
    """A jinja file that replaces the model's own template; it goes into checkpoints."""
    engine: str = "embedded"
    engine_args: dict[str, Any] = field(default_factory=dict[str, Any])
    trainer: str = "torch"
    trainer_args: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class CellReport:
    """What a cell says of itself once it listens."""

    cell: int
    incarnation: int
    url: str
    capacity: int
    pid: int


def draw_incarnation(run_dir: Path, name: str) -> int:
    """A number that grows with every start of `name` in this run, across restarts and resumes."""
    folder = run_dir / "incarnations"
    folder.mkdir(parents=True, exist_ok=True)
    number = sum(1 for _ in folder.glob(f"{name}.*"))
    while True:
        try:
            os.close(os.open(folder / f"{name}.{number}", os.O_CREAT | os.O_EXCL))
            return number
        except FileExistsError:
            number += 1


class Cell:
    """Life: start -> (roll -> shut -> drain -> train -> accumulate* -> close_step*)* -> stop."""

    def __init__(self, spec: CellSpec) -> None:
        self.spec = spec
        self.incarnation = draw_incarnation(spec.run_dir, f"cell-{spec.index}")
        self._engine: Engine | None = None
        self._trainer: Trainer | None = None
        self._worker = ThreadPoolExecutor(1, f"cell{spec.index}-trainer")

    async def start(self, version: int, checkpoint: Path | None) -> CellReport:
        """Load the model (and `checkpoint`, if any), serve it as `version`; the engine stays closed until `roll`."""
        await self._blocking(self._build, version, checkpoint)
        url = await self._engine_.start()
        capacity = await self._engine_.capacity()
        return CellReport(self.spec.index, self.incarnation, url, capacity, os.getpid())

    async def roll(self, version: int) -> None:
        """The end of a move to rollout: trainer asleep, engine awake with `version`, open."""
        await self._blocking(self._trainer_.sleep)
        await self._engine_.wake()
        await self._engine_.load(version)
        await self._engine_.open()

    async def shut(self) -> None:
        """The first step of a move to training: new calls get 409 from now on."""
        await self._engine_.close()

    async def drain(self) -> int:
        """After the gateways acknowledged routes without this cell: end its calls with their partial output, and
        sleep. Returns how many calls were interrupted."""
        aborted = await self._engine_.abort()
        while await self._engine_.calls():  # noqa: ASYNC110 - an engine, maybe another process, has no event to await
            await asyncio.sleep(0.01)
        await self._engine_.sleep()
        return aborted

    async def train(self) -> None:
        """The last step of a move to training."""
        await self._blocking(self._trainer_.wake)

    async def accumulate(self, micro_step: MicroStep) -> dict[str, float]:
        """Add one micro-step's gradient; sums of its metrics."""
        return await self._blocking(self._trainer_.accumulate, micro_step)

    async def close_step(self, scale: float, learning_rate: float) -> dict[str, float]:
        """Core only: the optimizer step, in place on the shared parameters."""
        return await self._blocking(self._trainer_.optimizer_step, scale, learning_rate)

    async def publish(self, version: int) -> None:
        """The parameters are `version` from the next token on."""
        await self._engine_.load(version)

    async def save(self, folder: Path) -> None:
        """Write a checkpoint folder, complete or absent."""
        await self._blocking(self._save, folder)

    async def stats(self) -> dict[str, float]:
        """The engine's counters."""
        return await self._engine_.stats()

    async def stop(self) -> None:
        """Free the port. Idempotent."""
        if self._engine is not None:
            await self._engine.stop()

    @property
    def _engine_(self) -> Engine:
        assert self._engine is not None, "start first"
        return self._engine

    @property
    def _trainer_(self) -> Trainer:
        assert self._trainer is not None, "start first"
        return self._trainer

    def _build(self, version: int, checkpoint: Path | None) -> None:
        import torch

        from qwengyre.model.load import causal_lm

        torch.set_num_threads(1)
        torch.manual_seed(self.spec.seed)
        model = causal_lm(self.spec.model)
        self._trainer = named("trainer.kind", self.spec.trainer, TRAINERS)(model, **self.spec.trainer_args)
        if checkpoint is not None:
            self._trainer_.load(checkpoint)
        self._engine = named("engine.kind", self.spec.engine, ENGINES)(
            model,
            name=f"cell{self.spec.index}.{self.incarnation}",
            eos_ids=self.spec.eos_ids,
            window=self.spec.window,
            version=version,
            seed=self.spec.seed,
            executions=self.spec.executions,
            **self.spec.engine_args,
        )

    def _save(self, folder: Path) -> None:
        unfinished = folder.with_name(f".{folder.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        self._trainer_.save(unfinished)
        if self.spec.chat_template:
            shutil.copyfile(self.spec.chat_template, unfinished / "chat_template.jinja")
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)

    async def _blocking(self, work: Callable[..., R], *args: Any) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._worker, work, *args)
