"""The training side of the actions: groups become micro-steps, cells claim them, the core steps and publishes."""

import asyncio
from dataclasses import dataclass, field

from qwengyre.cluster.crew import Books, Crew, Live
from qwengyre.cluster.groups import Groups
from qwengyre.cluster.ledger import Ledger
from qwengyre.cluster.record import StepRecord
from qwengyre.schedule import events as ev


@dataclass
class Training:
    """One open step at a time."""

    crew: Crew
    groups: Groups
    books: Books
    ledger: Ledger = field(default_factory=Ledger)
    publishing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the published version changes: no cell becomes routable meanwhile."""
    _records: dict[int, StepRecord] = field(default_factory=dict[int, StepRecord])

    async def weigh(self, group: int) -> None:
        """Produces Weighed."""
        micro_steps = await self.groups.weigh(group)
        self.crew.report(ev.Weighed, group, len(micro_steps), sum(m.tokens for m in micro_steps))

    def open(self, step: int) -> None:
        """The ledger is empty and open."""
        self.ledger.open(step)
        self._records[step] = StepRecord(step, self.crew.version, opened=self.crew.clock())

    async def admit(self, group: int, step: int) -> None:
        """The group's micro-steps become claimable. Produces Backlog."""
        micro_steps = await self.groups.weigh(group)
        self._records[step].admit(self.groups.summary(group, self.books.born(group)))
        self.ledger.add(micro_steps)
        self._backlog()

    async def feed(self, cell: int) -> None:
        """Consumes micro-steps of the ledger, produces gradient at the cell. Waits for data; ends by cancellation."""
        live, handle = self.crew.live[cell], self.crew.handle(cell)
        while True:
            claim = await self.ledger.claim(cell, live.report.incarnation)
            began = self.crew.clock()
            sums: dict[str, float] = await handle.accumulate.remote(claim.micro_step)
            if self.ledger.count(claim):
                self._records[claim.step].add(sums, self.crew.clock() - began)
                self._backlog()

    @staticmethod
    async def stop_feeding(live: Live) -> None:
        """The cell claims nothing more."""
        if live.feed is not None:
            live.feed.cancel()
            await asyncio.gather(live.feed, return_exceptions=True)
            live.feed = None

    async def close(self, step: int) -> None:
        """The optimizer step, with scale 1/E; a step without weight makes no optimizer call. Produces StepClosed."""
        record = self._records[step]
        if self.ledger.counted:
            metrics = await self.crew.core.close_step.remote(1.0 / record.num_executions, self.books.learning_rate)
            record.optimizer = metrics | {"learning_rate": self.books.learning_rate}
        record.closed = self.crew.clock()
        self.books.closed(self._records.pop(step))
        for group in record.groups:
            self.groups.forget(group.group)
        self.crew.report(ev.StepClosed, step)

    async def publish(self, version: int, step: int) -> None:
        """The core's weights, `step` steps old, become `version` at every rollout cell. Produces Published."""
        async with self.publishing:
            checkpoint = self.books.checkpoint_for(version, step)
            if checkpoint is not None:
                await self.crew.core.save.remote(checkpoint.folder)
                self.books.completed(checkpoint)
            self.crew.version = version
            await asyncio.gather(*(self.crew.handle(cell).publish.remote(version) for cell in self.crew.rolling))
        self.crew.report(ev.Published, version)

    def _backlog(self) -> None:
        ledger = self.ledger
        self.crew.report(ev.Backlog, ledger.step, len(ledger.pending), len(ledger.claimed), len(ledger.counted))
