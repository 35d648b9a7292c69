"""A cell: one engine and one trainer on the same devices, and the steps by which it changes its role.

A plain class, testable without Ray: `cluster/ray.py` makes it an actor. Control orders the steps of a transition
(`moves.py`, `training.py`); each step here is idempotent. Engine and trainer share one parameter set, so the engine is
asleep while the trainer is awake. Blocking work runs in the cell's one worker thread, never in the event loop.

Messages may carry the `incarnation` that the caller believes in; an older one raises RefusedError.
"""

import asyncio
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from qwengyre.cluster import memory
from qwengyre.cluster.checkpoints import steps_of
from qwengyre.cluster.handover import CellKV, Exported, Parcel, Plan
from qwengyre.cluster.share import Flush as Flush
from qwengyre.cluster.share import Share
from qwengyre.cluster.share import Snapshot as Snapshot
from qwengyre.engine.base import Engine
from qwengyre.errors import RefusedError, StartingError
from qwengyre.plugin import named
from qwengyre.schedule.handover import Rates
from qwengyre.trainer.base import Trainer
from qwengyre.transfer.kv import KVTicket, TensorKV
from qwengyre.types import MicroStep

R = TypeVar("R")

ENGINES = {
    "embedded": "qwengyre.engine.embedded:EmbeddedEngine",
    "scripted": "qwengyre.engine.scripted:ScriptedEngine",
    "emulated": "qwengyre.engine.emulated:EmulatedEngine",
}
TRAINERS = {
    "torch": "qwengyre.trainer.torch:TorchTrainer",
    "emulated": "qwengyre.trainer.emulated:EmulatedTrainer",
}
WEIGHTS = {"local": "qwengyre.transfer.weights:LocalWeights", "ray": "qwengyre.transfer.ray:RayWeights"}


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
    weights: str = "local"
    """How weights and gradients travel between cells."""

    @property
    def core(self) -> bool:
        """Cell 0 has the authoritative weights and the only optimizer."""
        return self.index == 0


@dataclass(frozen=True)
class CellReport:
    """What a cell says of itself once it listens."""

    cell: int
    incarnation: int
    url: str
    capacity: int
    pid: int


@dataclass(frozen=True)
class Drained:
    """What a leaving cell interrupted: its calls, and the partial tokens they keep."""

    calls: int
    tokens: int
    kv: int = 0
    """Tokens whose keys and values these calls had here."""


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
    """Life: start -> (roll -> shut -> drain -> train -> accumulate* [-> flush -> acknowledge])* -> stop.

    The core also: expose, receive, close_step or skip_step, save.
    """

    def __init__(self, spec: CellSpec) -> None:
        self.spec = spec
        self.incarnation = draw_incarnation(spec.run_dir, f"cell-{spec.index}")
        self._engine: Engine | None = None
        self._trainer: Trainer | None = None
        self._share: Share | None = None
        self._kv: CellKV | None = None
        self._before: dict[str, float] = {}
        """The engine's counters when it was shut: a hand-over interrupts calls before `drain` does."""
        self._starting = asyncio.Lock()
        self._worker = ThreadPoolExecutor(1, f"cell{spec.index}-trainer")

    async def start(self, version: int, checkpoint: Path | None) -> CellReport:
        """Load the model (and `checkpoint`, if any), serve it as `version`; the engine stays closed until `roll`.

        On a cell that lives (control died, or the run goes back to a checkpoint): its calls end with their partial
        output, and everything is made anew.
        """
        async with self._starting:
            if self._engine is not None:
                await self.shut()
                await self.drain()
                await self.stop()
            await self._blocking(self._build, version, checkpoint)
            url = await self._engine_.start()
            capacity = await self._engine_.capacity()
            return CellReport(self.spec.index, self.incarnation, url, capacity, os.getpid())

    # --- roles -------------------------------------------------------------------------------------------------------

    async def roll(self, version: int, snapshot: Snapshot | None = None, *, incarnation: int | None = None) -> None:
        """The end of a move to rollout: trainer asleep, weights of `snapshot` (what is published; pulled only if other
        than its own), engine awake with `version`, open. An unflushed gradient of a satellite is gone."""
        self._current(incarnation)
        await self._blocking(self._share_.rest, self.spec.core)
        if snapshot is not None:
            await self._blocking(self._take, snapshot)
        await self._blocking(memory.give_back)
        self._before = {}
        await self._engine_.wake()
        await self._engine_.load(version)
        await self._engine_.open()

    async def shut(self, *, incarnation: int | None = None) -> None:
        """The first step of a move to training: new calls get 409 from now on."""
        self._current(incarnation)
        self._before = self._before or await self._engine_.stats()
        await self._engine_.close()

    async def drain(self, *, incarnation: int | None = None) -> Drained:
        """After the gateways acknowledged routes without this cell: end its calls with their partial output, and
        sleep."""
        self._current(incarnation)
        before = self._before or await self._engine_.stats()
        await self._engine_.abort()
        while await self._engine_.calls():  # noqa: ASYNC110 - an engine, maybe another process, has no event to await
            await asyncio.sleep(0.01)
        stats, self._before = await self._engine_.stats(), {}
        await self._engine_.sleep()
        await self._blocking(memory.give_back)
        names = ("aborted", "aborted_tokens", "aborted_kv")
        return Drained(*(int(stats.get(name, 0) - before.get(name, 0)) for name in names))

    async def train(self, snapshot: Snapshot | None = None, *, incarnation: int | None = None) -> None:
        """The last step of a move to training, and of each new step: a satellite takes `snapshot` (pulled only if
        other than its own) and has an empty gradient; the core (None) goes on with its own."""
        self._current(incarnation)
        assert self.spec.core == (snapshot is None), "satellites train with a snapshot of the core, the core without"
        await self._blocking(self._share_.rise, snapshot)

    # --- keys and values (`handover.py`) ------------------------------------------------------------------------------

    async def expect_kv(
        self, executions: tuple[str, ...], limit_s: float, *, incarnation: int | None = None
    ) -> Rates | None:
        """Destination, before the source exports: calls of these executions wait for `import_kv`. Its rates."""
        self._current(incarnation)
        return await self._kv_.expect(executions, limit_s)

    async def export_kv(self, plan: Plan, *, incarnation: int | None = None) -> Exported:
        """Source, after `shut` and routes without it: end the calls of the plan, pin what is worth moving."""
        self._current(incarnation)
        return await self._kv_.export(plan)

    async def send_kv(self, parcel: str, *, incarnation: int | None = None) -> KVTicket:
        """Source: expose a parcel."""
        self._current(incarnation)
        return await self._kv_.send(parcel)

    async def import_kv(
        self, parcel: Parcel, ticket: KVTicket, exposing_s: float, *, incarnation: int | None = None
    ) -> int:
        """Destination: pull and keep a parcel; the tokens kept. EngineError, TransferError: they are recomputed."""
        self._current(incarnation)
        return await self._kv_.receive(parcel, ticket, exposing_s)

    async def free_kv(self, parcels: tuple[str, ...], moved: bool, *, incarnation: int | None = None) -> None:
        """Source: confirmed by the destination (`moved`), or given up. Idempotent."""
        self._current(incarnation)
        await self._kv_.free(parcels, moved)

    # --- gradients ---------------------------------------------------------------------------------------------------

    async def accumulate(self, micro_step: MicroStep, step: int, *, incarnation: int | None = None) -> dict[str, float]:
        """Add one micro-step's gradient; sums of its metrics. RefusedError for another step than its weights'."""
        self._current(incarnation)
        return await self._blocking(self._share_.accumulate, micro_step, step)

    async def flush(self, id: str, names: tuple[str, ...], *, incarnation: int | None = None) -> Flush | None:
        """Expose the gradient of `names`; kept until `acknowledge(id)`. The same answer to the same id."""
        self._current(incarnation)
        return await self._blocking(self._share_.flush, id, names)

    async def acknowledge(self, id: str, *, incarnation: int | None = None) -> None:
        """The core counted flush `id`: drop the buffer."""
        self._current(incarnation)
        await self._blocking(self._share_.acknowledge, id)

    async def receive(self, flush: Flush, *, incarnation: int | None = None) -> bool:
        """Core: add a satellite's gradient, once, when it is here completely. False: this id was counted before.

        Raises RefusedError (another step, or a micro-step counted before), TransferError; then nothing was added.
        """
        self._current(incarnation)
        return await self._blocking(self._share_.receive, flush)

    async def close_step(
        self, step: int, scale: float, learning_rate: float, *, incarnation: int | None = None
    ) -> dict[str, float]:
        """Core: the optimizer step, in place on the shared parameters. The same answer if repeated."""
        self._current(incarnation)
        metrics = await self._blocking(self._share_.close, step, scale, learning_rate)
        await self._blocking(memory.give_back)
        return metrics

    async def skip_step(self, step: int, *, incarnation: int | None = None) -> None:
        """Core: `step` had no weight, so it makes no optimizer call."""
        self._current(incarnation)
        await self._blocking(self._share_.skip, step)

    # --- weights -----------------------------------------------------------------------------------------------------

    async def expose(self, version: int | None = None, *, incarnation: int | None = None) -> Snapshot:
        """Core: its weights, for others to pull; the same until the next step. `version`: publish them as this."""
        self._current(incarnation)
        known = self._share_.exposed() if version is None else None  # a micro-step may hold the thread for long
        return known or await self._blocking(self._share_.expose, version)

    async def publish(self, version: int, snapshot: Snapshot | None = None, *, incarnation: int | None = None) -> None:
        """Take the weights of `snapshot` between two tokens (live calls go on); the next token is of `version`."""
        self._current(incarnation)
        if snapshot is None:
            await self._engine_.load(version)
        elif self.spec.core:
            await self._engine_.load(version, self._share_.restore)
        else:
            await self._engine_.load(version, await self._blocking(self._share_.fetch, snapshot))

    async def save(self, folder: Path) -> None:
        """Write a checkpoint folder, complete or absent."""
        await self._blocking(self._save, folder)

    async def stats(self) -> dict[str, float]:
        """The engine's counters."""
        return await self._engine_.stats()

    async def life(self, incarnation: int) -> None:
        """Returns never: who waits for it hears at once when this process dies. At once for one that is dead."""
        if incarnation == self.incarnation:
            await asyncio.Event().wait()

    async def leave(self, incarnation: int) -> None:
        """Control gave this incarnation up: the process ends, and the next one starts."""
        if incarnation == self.incarnation:
            os._exit(1)

    async def stop(self) -> None:
        """Free the port. Idempotent."""
        if self._engine is not None:
            await self._engine.stop()

    # -----------------------------------------------------------------------------------------------------------------

    def _current(self, incarnation: int | None) -> None:
        if incarnation is not None and incarnation < self.incarnation:
            raise RefusedError(
                f"cell {self.spec.index} is incarnation {self.incarnation}, the message is for {incarnation}"
            )

    @property
    def _engine_(self) -> Engine:
        if self._engine is None:
            raise StartingError(f"cell {self.spec.index} was not started yet")
        return self._engine

    @property
    def _trainer_(self) -> Trainer:
        if self._trainer is None:
            raise StartingError(f"cell {self.spec.index} was not started yet")
        return self._trainer

    @property
    def _share_(self) -> Share:
        if self._share is None:
            raise StartingError(f"cell {self.spec.index} was not started yet")
        return self._share

    @property
    def _kv_(self) -> CellKV:
        if self._kv is None:
            raise StartingError(f"cell {self.spec.index} was not started yet")
        return self._kv

    def _take(self, snapshot: Snapshot) -> None:
        if self.spec.core:
            self._share_.lay_aside(snapshot)
        else:
            self._share_.fetch(snapshot)()

    def _build(self, version: int, checkpoint: Path | None) -> None:
        trainer = named("trainer.kind", self.spec.trainer, TRAINERS)
        engine = named("engine.kind", self.spec.engine, ENGINES)
        model = self._model() if any(getattr(kind, "needs_model", True) for kind in (trainer, engine)) else None
        self._trainer = trainer(model, **self.spec.trainer_args)
        if checkpoint is not None:
            self._trainer_.load(checkpoint)
        name = f"cell{self.spec.index}.{self.incarnation}"
        transfer = named("cells.weights", self.spec.weights, WEIGHTS)(name)
        held = (steps_of(checkpoint) if checkpoint else 0, version)
        self._share = Share(self._trainer_, transfer, (self.spec.index, self.incarnation), held)
        self._engine = engine(
            model,
            name=name,
            eos_ids=self.spec.eos_ids,
            window=self.spec.window,
            version=version,
            seed=self.spec.seed,
            executions=self.spec.executions,
            **self.spec.engine_args,
        )
        self._kv = CellKV(self._engine, TensorKV(transfer), asyncio.to_thread)

    def _model(self) -> Any:
        import torch

        from qwengyre.model.load import causal_lm

        torch.set_num_threads(1)
        torch.manual_seed(self.spec.seed)
        return causal_lm(self.spec.model)

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
