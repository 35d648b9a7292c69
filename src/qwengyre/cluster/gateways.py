"""A gateway of the run, as a plain class; `ray.py` makes it an actor. HTTP is served in the actor's own event loop."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qwengyre.gateway.app import Gateway
from qwengyre.gateway.calls import Sealed
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


class GatewayProcess:
    """Serves the harnesses; control opens, routes and seals."""

    def __init__(self, spec: GatewaySpec) -> None:
        self._spec = spec
        self._gateway: Gateway | None = None
        self._control: Any = None

    async def start(self, control: Any) -> dict[str, Any]:
        """Listen on loopback and on the socket. `control` hears of dead engines."""
        from qwengyre.model.load import tokenizer

        spec, self._control = self._spec, control
        self._gateway = gateway = Gateway(
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
        )
        return {"url": await gateway.start(), "socket": str(spec.socket), "pid": os.getpid()}

    async def open(self, execution: str, token: str) -> None:
        """From now on `token` is this execution."""
        await self._gateway_.open(execution, token)

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
        assert self._gateway is not None, "start first"
        return self._gateway
