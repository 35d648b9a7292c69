"""Transitions of cells, in the order of design section 5: the harness sees one slow call at most.

to training   engine closed > gateways acknowledged routes without it > its calls interrupted with their partial
              output, engine asleep > trainer awake > claims micro-steps
to rollout    claims nothing more > trainer asleep > engine awake with the published version > routable
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from qwengyre.cluster.cell import CellReport
from qwengyre.cluster.crew import Crew, Live
from qwengyre.cluster.routing import Router
from qwengyre.cluster.training import Training
from qwengyre.schedule import events as ev
from qwengyre.types import Role


@dataclass
class Moves:
    """`failed` is told of a feed that ended by itself."""

    crew: Crew
    router: Router
    training: Training
    failed: Callable[[asyncio.Task[None]], None]

    async def join(self, report: CellReport) -> None:
        """A cell listens: open it for calls under the published version."""
        self.crew.live[report.cell] = Live(report)
        await self._roll(report.cell)

    async def become(self, cell: int, role: Role) -> None:
        """Produces Moved."""
        if role is Role.TRAINING:
            await self._train(cell)
        else:
            await self.training.stop_feeding(self.crew.live[cell])
            await self._roll(cell)
        self.crew.report(ev.Moved, cell, role)

    async def _train(self, cell: int) -> None:
        live, handle = self.crew.live[cell], self.crew.handle(cell)
        live.role = Role.TO_TRAINING
        await handle.shut.remote()
        await self.router.push()
        await handle.drain.remote()
        await handle.train.remote()
        live.role = Role.TRAINING
        live.feed = asyncio.create_task(self.training.feed(cell), name=f"feed of cell {cell}")
        live.feed.add_done_callback(self.failed)

    async def _roll(self, cell: int) -> None:
        live = self.crew.live[cell]
        live.role = Role.TO_ROLLOUT
        async with self.training.publishing:  # a cell is routable only when it holds the published version
            await self.crew.handle(cell).roll.remote(self.crew.version)
            live.role = Role.ROLLOUT
        await self.router.push()
