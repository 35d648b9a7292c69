"""A box: the parent of the sandboxes and verifiers of one node. A plain class; `ray.py` makes it an actor.

Owns no decision: control says which execution runs what. A box's death ends its executions, never the run.
"""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qwengyre.execution.harnesses.build import build as build_harness
from qwengyre.execution.runner import Runner
from qwengyre.execution.sandboxes.build import build as build_sandbox
from qwengyre.types import Ending, Query, Settlement


@dataclass(frozen=True)
class BoxSpec:
    """The arguments of a box's constructor, replayed at a restart. Folders are on the box's own node."""

    run_id: str
    run_dir: Path
    scratch: Path
    socket: Path
    model: str
    harness: dict[str, Any]
    sandbox: str
    images: dict[str, str] = field(default_factory=dict[str, str])
    retries: int = 2
    concurrent_verifiers: int = 4


class Box:
    """run -> freeze -> settle, for many executions at once."""

    def __init__(self, spec: BoxSpec) -> None:
        self._spec = spec
        self._gateway: Any = None
        self._runner: Runner | None = None

    async def start(self, gateway: Any) -> None:
        """Build the runner in this event loop; `gateway` answers how long an execution's calls were queued."""
        self._gateway = gateway
        spec = self._spec
        self._runner = Runner(
            run_id=spec.run_id,
            folder=spec.run_dir / "executions",
            scratch=spec.scratch,
            harness=build_harness(**spec.harness),
            sandbox=build_sandbox(spec.sandbox, run_id=spec.run_id, scratch=spec.scratch),
            images=spec.images,
            retries=spec.retries,
            concurrent_verifiers=spec.concurrent_verifiers,
            model=spec.model,
        )

    async def run(self, execution: str, query: Query, token: str) -> Ending:
        """The harness, from start until its sandbox is gone."""

        async def queued_s() -> float:
            return await self._gateway.queued_s.remote(execution)

        return await self._runner_.run(execution, query, token=token, socket=self._spec.socket, queued_s=queued_s)

    async def settle(self, execution: str, query: Query, ending: Ending) -> Settlement:
        """Freeze and hash the work, then grade it. Comes after the token was sealed."""
        return await self._runner_.settle(execution, query, ending)

    async def stop(self) -> None:
        """End every sandbox."""
        if self._runner is not None:
            await asyncio.shield(self._runner.stop())

    @property
    def _runner_(self) -> Runner:
        assert self._runner is not None, "start first"
        return self._runner
