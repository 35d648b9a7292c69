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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import ray
from ray import exceptions
from ray.util import placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from qwengyre.cluster.boxes import Box
from qwengyre.cluster.cell import Cell
from qwengyre.cluster.control import Control, ControlSpec
from qwengyre.cluster.crew import Hands
from qwengyre.cluster.folder import RunFolder
from qwengyre.cluster.gateways import GatewayProcess
from qwengyre.cluster.prepare import Prepared
from qwengyre.cluster.specs import Specs
from qwengyre.cluster.watchdog import Watchdog, listens
from qwengyre.config import Config
from qwengyre.errors import MachineError, QwenGyreError, RunError

RESOURCE = "qwengyre"
"""A resource of our own: CPU counts would make a third 1-CPU actor on two cores wait in silence."""
RAY_PROCESSES = ("gcs_server", "raylet")
PING_S = 30.0
"""Control answers within this once it has started, or the run ends."""
POLL_S = 0.25


LOST = (exceptions.RayActorError, exceptions.ObjectLostError)
"""What a call raises whose process died, or whose data died with a process."""


@dataclass
class Driver:
    """One run, from actors to summary. Use as a context manager: leaving it leaves nothing behind."""

    specs: Specs
    view: Callable[[dict[str, Any]], None]
    _reaper: subprocess.Popen[bytes] | None = None
    _handles: list[Any] = field(default_factory=list[Any])

    def __enter__(self) -> "Driver":
        run_id, scratch = self.specs.run_id, self.specs.scratch
        (scratch / "gateway").mkdir(parents=True, mode=0o700)
        os.environ["QWENGYRE_RUN"] = run_id
        self._reaper = start_reaper(run_id, scratch)
        init(self.specs)
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
        specs = self.specs
        near, places = _placement(specs)
        window, depth = specs.prepared.window, specs.prepared.tree_depth
        spec = ControlSpec(specs.config, specs.run_dir, window, depth, _machine(specs))
        control = self._actor(Control, "control", spec, near)
        gateway = self._actor(GatewayProcess, "gateway-0", specs.gateway(), near)
        box = self._actor(Box, "box-0", specs.box(), near)
        cells = tuple(self._actor(Cell, f"cell-{i}", specs.cell(i), place) for i, place in enumerate(places))
        try:
            return self._watch(control, Hands(control, gateway, box, cells, LOST))
        finally:
            with suppress(Exception):
                ray.get(box.stop.remote(), timeout=5)

    def _watch(self, control: Any, hands: Hands) -> dict[str, Any]:
        """Wait for the end, show progress, and end a run in which nothing happens any more. A control that dies is
        told to go on where its journal ends."""
        watchdog = Watchdog(self.specs.config, ray.get_runtime_context().gcs_address, ray.nodes)
        starting_s = max(PING_S, self.specs.config.cluster.watchdog_s)  # a busy machine starts processes slowly
        result, limit_s = control.run.remote(hands), starting_s
        while True:
            try:
                done, _ = ray.wait([result], timeout=POLL_S)
                summary = _get(result, 10) if done else None
                status = _get(control.status.remote(), limit_s)  # at the end: steps that closed since the last look
            except exceptions.RayActorError as error:
                watchdog.control_died(_one_line(error))
                result, limit_s = control.run.remote(hands), starting_s
                continue
            limit_s = PING_S
            self.view(status)
            if summary is not None:
                return summary
            watchdog.look(status)

    def _actor(self, cls: type[Any], name: str, spec: object, place: dict[str, Any]) -> Any:
        remote = ray.remote(cls).options(
            name=name, max_restarts=-1, max_task_retries=0, max_concurrency=10_000, **{"num_cpus": 0, **place}
        )
        handle = remote.remote(spec)
        self._handles.append(handle)
        return handle


def train(
    config: Config, folder: RunFolder, prepared: Prepared, *, view: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Run to the end; writes and returns `summary.json`. The folder must have been claimed; a run that it holds goes
    on."""
    scratch = Path(tempfile.gettempdir()) / f"qwengyre-{folder.id}"
    with _terminable(), Driver(Specs(config, prepared, folder.id, folder.path, scratch), view) as driver:
        summary = driver.run()
    path = folder.path / "summary.json"
    path.with_name(".summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    path.with_name(".summary.json").rename(path)
    return summary


def init(specs: Specs) -> None:
    """Start a local Ray of our own (never attach to one that happens to run), or join a cluster by address.

    `token.protect` must have run before this module was imported.
    """
    address = specs.config.cluster.address
    common: dict[str, Any] = {"namespace": specs.run_id, "log_to_driver": False, "configure_logging": False}
    try:
        if address != "local":
            if ":" in address.rpartition("/")[2] and not listens(address.rpartition("/")[2]):
                raise ConnectionError("nothing listens there")  # Ray itself would try for minutes
            ray.init(address=address, **common)
            return
        ray.init(
            address="local",
            num_cpus=0,
            num_gpus=0,
            resources={RESOURCE: 1000},
            include_dashboard=False,
            object_store_memory=_store_bytes(specs),
            _temp_dir=str(specs.scratch / "ray"),
            **common,
        )
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise MachineError(f"Ray did not start at cluster.address='{address}': {_one_line(error)}") from error


def _store_bytes(specs: Specs) -> int:
    """Room for two weight sets and a gradient of each satellite, in fp32 (files may hold half of that)."""
    weights = 2 * sum(file.stat().st_size for file in specs.prepared.model.glob("*.safetensors"))
    return max(256 * 2**20, weights * (2 + specs.num_cells) if specs.num_cells > 1 else 0)


def _placement(specs: Specs) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Options of the actors beside the driver, and of each cell. Raises MachineError: the cluster has no room."""
    cluster = specs.config.cluster
    if cluster.address == "local":
        near: dict[str, Any] = {"resources": {RESOURCE: 1}}
        return near, [near] * specs.num_cells
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    group = placement_group([dict(cluster.cell)] * specs.num_cells, strategy="PACK")
    if not group.wait(cluster.placement_s):
        raise MachineError(
            f"cluster.address='{cluster.address}' has no place for {specs.num_cells} cells of {cluster.cell} after "
            f"{cluster.placement_s:g} s (free: {ray.available_resources()}): set cells.count or cluster.cell"
        )
    places: list[dict[str, Any]] = []
    for index in range(specs.num_cells):
        needs = dict(cluster.cell)
        cpus, gpus = needs.pop("CPU", 0), needs.pop("GPU", 0)
        where = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
        places.append({"num_cpus": cpus, "num_gpus": gpus, "resources": needs, "scheduling_strategy": where})
    return {"scheduling_strategy": here}, places


def _machine(specs: Specs) -> dict[str, Any]:
    """The driver and its Ray, for `processes.json`."""
    children = {child.name(): child.pid for child in psutil.Process().children() if child.name() in RAY_PROCESSES}
    return {
        "run": specs.run_id,
        "driver": os.getpid(),
        "ray": {"address": ray.get_runtime_context().gcs_address, "session": str(specs.scratch / "ray"), **children},
    }


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
