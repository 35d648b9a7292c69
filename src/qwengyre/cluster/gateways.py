"""A gateway of the run, as a plain class; `ray.py` makes it an actor. HTTP is served in the actor's own event loop."""

import asyncio
import gc
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qwengyre import profiles
from qwengyre.cluster.cell import draw_incarnation
from qwengyre.errors import StartingError
from qwengyre.gateway.app import Gateway
from qwengyre.gateway.calls import Sealed
from qwengyre.gateway.echo import Edits
from qwengyre.gateway.identity import Signals
from qwengyre.gateway.render import TemplateRenderer
from qwengyre.types import Routes, Sampling


@dataclass(frozen=True)
class GatewaySpec:
    """The arguments of a gateway's constructor, replayed at a restart."""

    run_dir: Path
    socket: Path
    port: int
    tokenizer: Path
    chat_template: str
    model: str
    sampling: Sampling
    window: int
    body_limit_mb: int
    seed: int
    harness: str = ""
    """Its kind, whose profile says how it tells its threads apart and what it does to its own history."""


class GatewayProcess:
    """Serves the harnesses; control opens, routes and seals."""

    def __init__(self, spec: GatewaySpec) -> None:
        self._spec = spec
        self.incarnation = draw_incarnation(spec.run_dir, "gateway-0")
        self._gateway: Gateway | None = None
        self._control: Any = None
        self._report: dict[str, Any] = {}
        self._starting = asyncio.Lock()

    async def start(self, control: Any) -> dict[str, Any]:
        """Listen on loopback and on the socket, with every unsealed execution of the run open. Idempotent.

        `control` hears of dead engines. Returns url, socket, pid, incarnation, and the epoch of the routes in force.
        """
        async with self._starting:
            self._control = control
            if self._gateway is None:
                gateway = await asyncio.to_thread(self._build)
                gc.collect()
                gc.freeze()  # what is there now stays: nobody need look through it again at each call
                facts = {"incarnation": self.incarnation, "pid": os.getpid(), "socket": str(self._spec.socket)}
                self._report = facts | {"url": await gateway.start()}
                self._gateway = gateway
            return self._report | {"epoch": await self._gateway.route(Routes(-1, {}, {}))}

    async def life(self, incarnation: int) -> None:
        """Returns never: who waits for it hears at once when this process dies. At once for one that is dead."""
        if incarnation == self.incarnation:
            await asyncio.Event().wait()

    def _build(self) -> Gateway:
        from qwengyre.model.load import tokenizer

        spec = self._spec
        return Gateway(
            folder=spec.run_dir / "calls",
            socket=spec.socket,
            port=spec.port,
            renderer=TemplateRenderer(tokenizer(spec.tokenizer, spec.chat_template)),
            sampling=spec.sampling,
            window=spec.window,
            model=spec.model,
            body_limit_mb=spec.body_limit_mb,
            on_engine_lost=self._engine_lost,
            seed=spec.seed,
            signals=Signals.of(profiles.told(spec.harness).get("signals", {})),
            edits=Edits.of(profiles.edits(spec.harness)),
        )

    async def open(self, execution: str, token: str, temperature: float | None = None) -> None:
        """From now on `token` is this execution, sampled at `temperature` (None: the run's)."""
        await self._gateway_.open(execution, token, temperature)

    async def route(self, routes: Routes) -> int:
        """Replace the routes; returns the acknowledged epoch."""
        return await self._gateway_.route(routes)

    async def seal(self, execution: str) -> Sealed:
        """No more calls; the journal is closed and durable."""
        return await self._gateway_.seal(execution)

    async def queued_s(self, execution: str) -> float:
        """Seconds that this execution waited for an engine."""
        return await self._gateway_.queued_s(execution)

    async def live(self) -> list[dict[str, Any]]:
        """Calls in flight."""
        return await self._gateway_.live()

    async def stop(self) -> None:
        """Stop listening. Idempotent."""
        if self._gateway is not None:
            await self._gateway.stop()

    async def _engine_lost(self, cell: int, incarnation: int, reason: str) -> None:
        await self._control.engine_lost.remote(cell, incarnation, reason)

    @property
    def _gateway_(self) -> Gateway:
        if self._gateway is None:
            raise StartingError("the gateway was not started yet")
        return self._gateway
