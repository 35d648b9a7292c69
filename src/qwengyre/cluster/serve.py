"""An engine and a gateway in one process, for people who want exact traces of their agents: no trainer, no Ray.

Every execution has its token from the start; its calls are journaled as in a run, so `qwengyre inspect` shows them.
"""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from qwengyre import profiles
from qwengyre.cluster.cell import ENGINES
from qwengyre.config import Config
from qwengyre.engine.base import Engine
from qwengyre.gateway.app import Gateway
from qwengyre.gateway.calls import Sealed
from qwengyre.gateway.echo import Edits
from qwengyre.gateway.render import TemplateRenderer
from qwengyre.plugin import named
from qwengyre.types import Place, Routes, Sampling


@dataclass(frozen=True)
class Door:
    """Where the agent of one execution is pointed to."""

    execution: str
    base_url: str
    """With /v1, as OpenAI's clients want it; Anthropic's want it without."""
    api_key: str


class Served:
    """`start` -> `doors` -> `stop`. Raises what a run raises: ConfigError, MachineError, EngineError."""

    def __init__(self, config: Config, run_dir: Path, executions: int) -> None:
        self._config, self._run_dir = config, run_dir
        self._tokens = {f"{n}-0": secrets.token_urlsafe(24) for n in range(executions)}
        self._engine: Engine | None = None
        self._gateway: Gateway | None = None
        self._epoch = 0
        self._url = ""

    async def start(self, folder: Path) -> list[Door]:
        """Serve the model of a HF folder; every execution is open when this returns."""
        self._engine = await asyncio.to_thread(self._make_engine, folder)
        self._url = await self._engine.start()
        await self._engine.open()
        self._gateway = await asyncio.to_thread(self._make_gateway, folder)
        url = await self._gateway.start()
        for execution, token in self._tokens.items():
            await self._gateway.open(execution, token)
        await self._route()
        return [Door(name, f"{url}/x/{token}/v1", token) for name, token in self._tokens.items()]

    async def stop(self) -> dict[str, Sealed]:
        """Seal every execution and stop. Idempotent."""
        sealed: dict[str, Sealed] = {}
        if self._gateway is not None:
            for execution in self._tokens:
                sealed[execution] = await self._gateway.seal(execution)
            await self._gateway.stop()
        if self._engine is not None:
            await self._engine.stop()
        self._gateway = self._engine = None
        return sealed

    def _make_engine(self, folder: Path) -> Engine:
        import torch

        from qwengyre.model import load

        torch.set_num_threads(1)
        config = self._config
        return named("engine.kind", config.engine.kind, ENGINES)(
            load.causal_lm(folder),
            name="cell0.0",
            eos_ids=load.eos_ids(folder),
            window=load.window(folder),
            seed=config.run.seed,
            **config.engine.args,
        )

    def _make_gateway(self, folder: Path) -> Gateway:
        from qwengyre.model import load

        config = self._config
        return Gateway(
            folder=self._run_dir / "calls",
            socket=None,
            port=config.gateway.port,
            renderer=TemplateRenderer(load.tokenizer(folder, config.model.chat_template)),
            sampling=Sampling(config.rl.temperature, config.rl.max_tokens),
            window=load.window(folder),
            model=config.model.name,
            body_limit_mb=config.gateway.body_limit_mb,
            on_engine_lost=self._lost,
            seed=config.run.seed,
            live=True,
            edits=Edits.of(profiles.edits(*profiles.names())),  # any of them may come
        )

    async def _lost(self, cell: int, incarnation: int, reason: str) -> None:
        """The engine lives in this process: its calls are tried again at the same place."""
        await self._route()

    async def _route(self) -> None:
        assert self._gateway is not None
        self._epoch += 1
        await self._gateway.route(Routes(self._epoch, {0: Place(self._url, 0)}, dict.fromkeys(self._tokens, 0)))


async def serve(
    config: Config, run_dir: Path, folder: Path, executions: int, told: Callable[[list[Door]], None]
) -> dict[str, Sealed]:
    """Serve until cancelled; `told` hears where. Returns what each execution amounts to."""
    served = Served(config, run_dir, executions)
    try:
        told(await served.start(folder))
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        pass
    finally:
        sealed = await served.stop()
    return sealed
