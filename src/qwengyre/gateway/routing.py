"""The gateway's copy of the routes: an immutable snapshot, replaced as a whole. It routes nothing on its own."""

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from qwengyre.types import Routes

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Home:
    """Where a call runs: the execution's cell under the routes of `epoch`."""

    cell: int
    url: str
    incarnation: int
    epoch: int


class Switch:
    """Holds the newest routes and wakes who waits for newer ones."""

    def __init__(self) -> None:
        self._routes = Routes(-1, {}, {})
        self._changed = asyncio.Event()

    def replace(self, routes: Routes) -> int:
        """Take newer routes; older ones are ignored. Returns the epoch in force, which acknowledges it."""
        if routes.epoch > self._routes.epoch:
            self._routes = routes
            self._changed.set()
            self._changed = asyncio.Event()
        return self._routes.epoch

    async def home(self, execution: str, newer_than: int) -> Home:
        """The execution's home under routes newer than `newer_than`; waits until there is one."""
        while True:
            routes = self._routes
            cell = routes.homes.get(execution)
            if routes.epoch > newer_than and cell in routes.cells:
                place = routes.cells[cell]
                return Home(cell, place.url, place.incarnation, routes.epoch)
            await self._changed.wait()

    async def gone(self, home: Home, grace_s: float) -> None:
        """Returns when the routes know another incarnation of the home's cell, or have not named the cell for
        `grace_s`: a call there can no longer be expected to end."""
        while True:
            place, changed = self._routes.cells.get(home.cell), self._changed
            if place is not None and place.incarnation != home.incarnation:
                return
            try:
                async with asyncio.timeout(None if place is not None else grace_s):
                    await changed.wait()
            except TimeoutError:
                return


class Tasks:
    """Background tasks that nobody awaits: held until they end, their errors logged."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run `work` in the background."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._end)

    async def close(self) -> None:
        """Cancel what still runs and wait for it."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _end(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("a background task failed", exc_info=error)
