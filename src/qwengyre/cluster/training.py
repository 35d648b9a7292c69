"""The training side of the actions: groups become micro-steps, cells claim them, the core steps and publishes.

Each training cell has one feed: it claims, lets the cell accumulate, and sees to it that the gradient reaches the core.
The core's own micro-steps are counted at once, a satellite's when the core received its flush. A satellite flushes when
nothing is pending, when it leaves, and before it takes the weights of another step.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from qwengyre.cluster.cell import Flush, Snapshot
from qwengyre.cluster.crew import Books, Crew, Live
from qwengyre.cluster.groups import Groups
from qwengyre.cluster.ledger import Claim, Ledger
from qwengyre.cluster.record import StepRecord
from qwengyre.errors import QwenGyreError, RefusedError, RunError, TransferError
from qwengyre.schedule import events as ev

CORE = 0
PUBLISH_S = 120.0
"""A cell that takes longer to take the published weights is lost."""
Done = tuple[Claim, dict[str, float], float]
"""A claim whose gradient the cell has, its sums, and the seconds it took."""


class CoreLostError(QwenGyreError):
    """The core did not do what was asked, or its gradient is gone: nothing is wrong with the cell that waited for it.

    `incarnation` is the one that failed; -1: its loss is known already.
    """

    def __init__(self, said: str, incarnation: int = -1) -> None:
        super().__init__(said)
        self.incarnation = incarnation


def _no_losses(cell: int, incarnation: int, reason: str) -> None:
    raise RunError(f"cell {cell} (incarnation {incarnation}) is lost: {reason}")


@dataclass
class Training:
    """One open step at a time. `lost(cell, incarnation, reason)` is told of a cell that failed in its feed."""

    crew: Crew
    groups: Groups
    books: Books
    lost: Callable[[int, int, str], None] = _no_losses
    ledger: Ledger = field(default_factory=Ledger)
    publishing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the published version changes: no cell becomes routable meanwhile."""
    published: Snapshot | None = None
    """The weights that rollout cells hold; None until a second cell needs them."""
    trained_tokens: int = 0
    """Tokens of all counted micro-steps."""
    _records: dict[int, StepRecord] = field(default_factory=dict[int, StepRecord])
    _steps: dict[int, int] = field(default_factory=dict[int, int])
    """Satellite -> the step of its weights."""
    _flushes: int = 0
    _receiving: dict[int, asyncio.Task[None]] = field(default_factory=dict[int, asyncio.Task[None]])
    """Cell -> its flush on the way into the core."""

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
        micro_steps = await self.groups.weigh(group, admitted=True)
        self._records[step].admit(self.groups.summary(group, self.books.born(group)))
        self.ledger.add(micro_steps)
        self._backlog()

    # --- cells come and go -------------------------------------------------------------------------------------------

    async def wake(self, cell: int) -> None:
        """The last phase of a move to training: a satellite gets the core's weights and an empty gradient. From now on
        the cell may claim."""
        self.ledger.enroll(cell, self._incarnation(cell))
        try:
            if cell == CORE:
                await self._core("train")
            else:
                await self._take(cell)
        except BaseException:
            self.ledger.dismiss(cell)
            raise

    async def _take(self, cell: int) -> None:
        """A satellite gets the core's weights. If the core closes the step meanwhile, its next claim is of another step
        than its weights, and it comes back here."""
        while True:
            snapshot: Snapshot = await self._core("expose")
            try:
                await self.crew.handle(cell).train.remote(snapshot, incarnation=self._incarnation(cell))
            except TransferError:
                if (await self._core("expose")).ticket.id == snapshot.ticket.id:
                    raise
            else:
                self._steps[cell] = snapshot.step
                return

    async def served(self, cell: int) -> Snapshot | None:
        """The published weights for `cell`, which is about to roll out. None: it has them (a run of one cell)."""
        if len(self.crew.hands.cells) == 1:
            return None
        if self.published is None and cell != CORE:
            self.published = await self._core("expose", self.crew.version)
        return self.published

    async def feed(self, cell: int) -> None:
        """Consumes micro-steps of the ledger, produces gradient at the core. Ends when the cell is dismissed.

        A cell that fails is reported lost; its claims return when `forget` is called.
        """
        live = self.crew.live[cell]
        incarnation = live.report.incarnation
        try:
            if cell == CORE:
                await self._feed_core(incarnation)
            else:
                await self._feed_satellite(cell, incarnation)
        except CoreLostError as error:
            if error.incarnation >= 0:
                self.lost(CORE, error.incarnation, str(error))
        except Exception as error:
            self.lost(cell, incarnation, f"{type(error).__name__}: {error}")

    async def stop_feeding(self, live: Live) -> None:
        """The cell finishes its running micro-step, flushes, is acknowledged, and claims nothing more."""
        if live.feed is not None:
            self.ledger.dismiss(live.report.cell)
            await asyncio.shield(live.feed)
            live.feed = None

    async def forget(self, live: Live) -> int:
        """The cell is lost. Its claims return, except those of a flush that the core received. With the core, all of
        the open step return, and nobody trains until the run went back. Returns how many."""
        cell = live.report.cell
        for worker in list(self.ledger.workers) if cell == CORE else [cell]:
            self.ledger.dismiss(worker)
        if (receiving := self._receiving.get(cell)) is not None:
            await asyncio.wait([receiving])
        if live.feed is not None:
            live.feed.cancel()
            await asyncio.gather(live.feed, return_exceptions=True)
            live.feed = None
        returned = self.ledger.core_lost() if cell == CORE else self.ledger.give_back(cell)
        if returned:
            self._backlog()
        return returned

    async def _feed_core(self, incarnation: int) -> None:
        while (claim := await self._claim(CORE, incarnation)) is not None:
            began = self.crew.clock()
            sums = await self._core("accumulate", claim.micro_step, claim.step)
            self._count([(claim, sums, self.crew.clock() - began)])

    async def _feed_satellite(self, cell: int, incarnation: int) -> None:
        handle = self.crew.handle(cell)
        done: list[Done] = []
        while True:
            if done and not self.ledger.offers(cell):
                await self._flush(cell, incarnation, done)
                done = []
            claim = await self._claim(cell, incarnation)
            if claim is None:
                return
            if claim.step != self._steps[cell]:
                await self._take(cell)
            began = self.crew.clock()
            sums = await handle.accumulate.remote(claim.micro_step, claim.step, incarnation=incarnation)
            done.append((claim, sums, self.crew.clock() - began))

    async def _claim(self, cell: int, incarnation: int) -> Claim | None:
        """Produces Backlog: what is claimed is no reason to lend another cell."""
        claim = await self.ledger.claim(cell, incarnation)
        if claim is not None:
            self._backlog()
        return claim

    async def _flush(self, cell: int, incarnation: int, done: list[Done]) -> None:
        """The cell's gradient goes to the core, which counts it; then the cell may drop it."""
        handle = self.crew.handle(cell)
        self._flushes += 1
        id = f"{cell}.{incarnation}/{self._flushes}"
        names = tuple(claim.name for claim, _, _ in done)
        flush: Flush = await handle.flush.remote(id, names, incarnation=incarnation)
        task = asyncio.create_task(self._receive(flush, done), name=f"flush {id}")
        self._receiving[cell] = task
        try:
            await asyncio.shield(task)
        finally:
            if task.done():
                del self._receiving[cell]
        await handle.acknowledge.remote(id, incarnation=incarnation)

    async def _receive(self, flush: Flush, done: list[Done]) -> None:
        if not all(self.ledger.holds(claim) for claim, _, _ in done):
            raise CoreLostError(f"flush {flush.id}: its claims returned meanwhile")
        await self._core("receive", flush)
        self._count(done)

    async def _core(self, method: str, *args: Any) -> Any:
        """A call of the core, under the incarnation that control knows. Raises CoreLostError when it fails."""
        live = self.crew.live.get(CORE)
        if live is None:
            raise CoreLostError(f"'{method}': the core is not here")
        incarnation = live.report.incarnation
        try:
            return await getattr(self.crew.core, method).remote(*args, incarnation=incarnation)
        except Exception as error:
            if isinstance(error, TransferError) or (method == "receive" and isinstance(error, RefusedError)):
                raise  # the flush is at fault
            raise CoreLostError(f"'{method}' failed: {type(error).__name__}: {error}", incarnation) from error

    def _count(self, done: list[Done]) -> None:
        """The gradient of these micro-steps lies at the core. Produces Backlog."""
        for claim, sums, seconds in done:
            if self.ledger.count(claim):
                self.trained_tokens += claim.micro_step.tokens
                self._records[claim.step].add(sums, seconds)
        self._backlog()

    # --- the edges of a step -----------------------------------------------------------------------------------------

    async def close(self, step: int) -> None:
        """The optimizer step, with scale 1/E; a step without weight makes no optimizer call. Produces StepClosed."""
        record = self._records[step]
        if self.ledger.counted:
            rate = self.books.learning_rate(step)
            metrics = await self._core("close_step", step, 1.0 / record.num_executions, rate)
            record.optimizer = metrics | {"learning_rate": rate}
        else:
            await self._core("skip_step", step)
        record.closed = self.crew.clock()
        self.books.closed(self._records.pop(step))
        for group in record.groups:
            self.groups.forget(group.group)
        self.crew.report(ev.StepClosed, step)

    async def publish(self, version: int, step: int) -> None:
        """The core's weights, `step` steps old, become `version` at every rollout cell. Produces Published, once each
        of them holds it or is lost."""
        async with self.publishing:
            alone = len(self.crew.hands.cells) == 1
            snapshot: Snapshot | None = None if alone else await self._core("expose", version)
            if CORE in self.crew.rolling:
                await self._core("publish", version, snapshot)
            checkpoint = self.books.checkpoint_for(version, step)
            if checkpoint is not None:
                began = self.crew.clock()
                await self.crew.core.save.remote(checkpoint.folder)
                self.books.completed(checkpoint, self.crew.clock() - began)
            self.crew.version, self.published = version, snapshot
            rolling = {cell: self._incarnation(cell) for cell in self.crew.rolling if cell != CORE}
            await asyncio.gather(*(self._stamp(cell, incarnation, snapshot) for cell, incarnation in rolling.items()))
        self.crew.report(ev.Published, version)

    async def _stamp(self, cell: int, incarnation: int, snapshot: Snapshot | None) -> None:
        """The cell holds the published version, or is lost."""
        try:
            async with asyncio.timeout(PUBLISH_S):
                await self.crew.handle(cell).publish.remote(self.crew.version, snapshot, incarnation=incarnation)
        except Exception as error:
            said = str(error) or f"no answer in {PUBLISH_S:.0f} s"
            self.lost(cell, incarnation, f"it could not take version {self.crew.version}: {said}")

    def _incarnation(self, cell: int) -> int:
        return self.crew.live[cell].report.incarnation

    def _backlog(self) -> None:
        self.crew.report(ev.Backlog, self.ledger.step, *self.ledger.backlog)
