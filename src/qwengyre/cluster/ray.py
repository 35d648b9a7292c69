"""The command as Ray's driver: it creates every actor, holds every handle to the end, and watches the run.

Ray is the engine and the supervisor, on a laptop too. The driver's death ends everything: actors are not detached,
Ray's own processes die with it, and the reaper (`reaper.py`) ends and removes whatever is left within seconds.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray import exceptions

from qwengyre.cluster.boxes import Box, BoxSpec
from qwengyre.cluster.cell import Cell, CellSpec
from qwengyre.cluster.control import Control, ControlSpec
from qwengyre.cluster.crew import Hands
from qwengyre.cluster.folder import RunFolder
from qwengyre.cluster.gateways import GatewayProcess, GatewaySpec
from qwengyre.cluster.prepare import Prepared, harness_of
from qwengyre.config import Config
from qwengyre.errors import MachineError, QwenGyreError, RunError
from qwengyre.types import Sampling

RESOURCE = "qwengyre"
"""A resource of our own: CPU counts would make a third 1-CPU actor on two cores wait in silence."""
PING_S = 30.0
"""Control answers within this, or the run ends."""
POLL_S = 0.25


@dataclass
class Driver:
    """One run, from actors to summary. Use as a context manager: leaving it leaves nothing behind."""

    config: Config
    folder: RunFolder
    prepared: Prepared
    resume: bool
    view: Callable[[dict[str, Any]], None]
    _reaper: subprocess.Popen[bytes] | None = None
    _handles: list[Any] = field(default_factory=list[Any])

    @property
    def id(self) -> str:
        """Of this start of the run."""
        return self.folder.id

    @property
    def scratch(self) -> Path:
        """Sockets, workspaces and Ray's session: a short path, since unix sockets allow 107 bytes."""
        return Path(tempfile.gettempdir()) / f"qwengyre-{self.id}"

    def __enter__(self) -> "Driver":
        (self.scratch / "gateway").mkdir(parents=True, mode=0o700)
        os.environ["QWENGYRE_RUN"] = self.id
        self._reaper = start_reaper(self.id, self.scratch)
        init(self.config.cluster.address, self.id, self.scratch)
        return self

    def __exit__(self, *_: object) -> None:
        self._handles.clear()
        ray.shutdown()
        os.environ.pop("QWENGYRE_RUN", None)
        if self._reaper is not None:
            assert self._reaper.stdin is not None
            self._reaper.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                self._reaper.wait(30)

    def run(self) -> dict[str, Any]:
        """Create the actors, run, return the summary. Raises QwenGyreError, KeyboardInterrupt."""
        control = self._actor(
            Control, "control", ControlSpec(self.config, self.folder.path, self.resume, self.prepared.window)
        )
        gateway = self._actor(GatewayProcess, "gateway-0", self._gateway_spec())
        box = self._actor(Box, "box-0", self._box_spec())
        cells = tuple(
            self._actor(Cell, f"cell-{index}", self._cell_spec(index))
            for index in range(self.config.cells.count + self.config.cells.standalone)
        )
        try:
            _get(gateway.start.remote(control), 120)
            _get(box.start.remote(gateway), 60)
            return self._watch(control, control.run.remote(Hands(gateway, box, cells)))
        except exceptions.RayActorError as error:
            raise RunError(f"a process of the run died: {_one_line(error)}. Continue with --resume.") from error
        finally:
            with suppress(Exception):
                ray.get(box.stop.remote(), timeout=5)

    def _watch(self, control: Any, result: Any) -> dict[str, Any]:
        """Wait for the end, show progress, and end a run in which nothing happens any more."""
        alive, since = -1, time.monotonic()
        while True:
            done, _ = ray.wait([result], timeout=POLL_S)
            if done:
                summary = _get(result, 10)
                self.view(_get(control.status.remote(), PING_S))  # steps that closed since the last look
                return summary
            status = _get(control.status.remote(), PING_S)
            self.view(status)
            if status["alive"] != alive:
                alive, since = status["alive"], time.monotonic()
            idle = time.monotonic() - since
            if idle > self._patience_s(status):
                cause = "; ".join(status["waiting"]) or "nothing is waiting"
                raise RunError(f"nothing happened for {idle:.0f} s: {cause}. Continue with --resume.")

    def _patience_s(self, status: dict[str, Any]) -> float:
        """How long nothing may happen: a harness that is busy without a model call has its own time-out first."""
        busy = status["phase"] == "running" and status["placed"] > status["ended"] and not status["calls"]
        config = self.config
        return config.cluster.watchdog_s + (config.harness.overall_timeout_s if busy else 0.0)

    def _actor(self, cls: type[Any], name: str, spec: object) -> Any:
        remote = ray.remote(cls).options(
            name=name, num_cpus=0, resources={RESOURCE: 1}, max_restarts=0, max_task_retries=0, max_concurrency=10_000
        )
        handle = remote.remote(spec)
        self._handles.append(handle)
        return handle

    @property
    def _socket(self) -> Path:
        return self.scratch / "gateway" / "gateway.sock"

    def _gateway_spec(self) -> GatewaySpec:
        config = self.config
        return GatewaySpec(
            run_dir=self.folder.path,
            socket=self._socket,
            port=config.gateway.port,
            tokenizer=self.prepared.model,
            chat_template=config.model.chat_template,
            model=config.model.name,
            sampling=Sampling(config.rl.temperature, config.rl.max_tokens),
            window=self.prepared.window,
            body_limit_mb=config.gateway.body_limit_mb,
            seed=config.run.seed,
        )

    def _box_spec(self) -> BoxSpec:
        config = self.config
        return BoxSpec(
            run_id=self.id,
            run_dir=self.folder.path,
            scratch=self.scratch,
            socket=self._socket,
            model=config.model.name,
            harness=harness_of(config),
            sandbox=config.sandbox.kind,
            images=config.sandbox.images,
            retries=config.scoring.retries,
            concurrent_verifiers=config.sandbox.concurrent,
        )

    def _cell_spec(self, index: int) -> CellSpec:
        config = self.config
        trainer = config.trainer
        return CellSpec(
            index=index,
            run_dir=self.folder.path,
            model=self.prepared.model,
            window=self.prepared.window,
            eos_ids=self.prepared.eos_ids,
            executions=config.cells.executions,
            seed=config.run.seed,
            chat_template=config.model.chat_template,
            engine=config.engine.kind,
            engine_args=config.engine.args,
            trainer=trainer.kind,
            trainer_args={
                "loss": trainer.loss,
                "weight_decay": trainer.weight_decay,
                "clip_norm": trainer.clip_norm,
                "optimizer": index == 0,
                "source": self.prepared.model,
            },
        )


def train(
    config: Config, folder: RunFolder, prepared: Prepared, *, resume: bool, view: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Run to the end; writes and returns `summary.json`. The folder must have been claimed."""
    with _terminable(), Driver(config, folder, prepared, resume, view) as driver:
        summary = driver.run()
    path = folder.path / "summary.json"
    path.with_name(".summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    path.with_name(".summary.json").rename(path)
    return summary


def init(address: str, namespace: str, scratch: Path) -> None:
    """Start a local Ray of our own (never attach to one that happens to run), or join a cluster by address.

    `token.protect` must have run before this module was imported.
    """
    common: dict[str, Any] = {"namespace": namespace, "log_to_driver": False, "configure_logging": False}
    try:
        if address != "local":
            ray.init(address=address, **common)
            return
        ray.init(
            address="local",
            num_cpus=0,
            num_gpus=0,
            resources={RESOURCE: 1000},
            include_dashboard=False,
            object_store_memory=256 * 2**20,
            _temp_dir=str(scratch / "ray"),
            **common,
        )
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise MachineError(f"Ray did not start at cluster.address='{address}': {_one_line(error)}") from error


def start_reaper(run_id: str, scratch: Path) -> "subprocess.Popen[bytes]":
    """In a session of its own, so that a signal to our process group does not reach it."""
    environment = {k: v for k, v in os.environ.items() if k != "QWENGYRE_RUN"}
    return subprocess.Popen(
        [sys.executable, "-m", "qwengyre.cluster.reaper", run_id, str(scratch)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=environment,
        cwd="/",
    )


class _terminable:
    """SIGTERM and SIGHUP end the run like Ctrl-C does."""

    def __enter__(self) -> None:
        self._before = {s: signal.signal(s, self._interrupt) for s in (signal.SIGTERM, signal.SIGHUP)}

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @staticmethod
    def _interrupt(*_: object) -> None:
        raise KeyboardInterrupt


def _get(reference: Any, timeout_s: float) -> Any:
    """`ray.get` whose errors are ours: the cause as raised in the actor, and a sentence for a time-out."""
    try:
        return ray.get(reference, timeout=timeout_s)
    except exceptions.RayTaskError as error:
        if isinstance(error.cause, QwenGyreError):
            raise error.cause from None
        raise RunError(f"{_one_line(error.cause)} (in {error.function_name}). Continue with --resume.") from error
    except exceptions.GetTimeoutError:
        raise RunError(f"an actor of the run did not answer for {timeout_s:.0f} s. Continue with --resume.") from None


def _one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"
