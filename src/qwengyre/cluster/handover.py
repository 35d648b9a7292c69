"""Keys and values of a leaving cell's executions go to their new places, so that nothing is computed twice.

    destinations  expect: calls of these executions wait > import: those that wait go on > keep
    source        (closed, and the gateways acknowledged routes without it) export: the calls end with their partial
                  output, their keys and values are pinned > send, a parcel at a time > freed when confirmed

Whatever fails, the calls lose nothing: their tokens are the gateway's, and the destination computes them again. Only
moving and recomputing are weighed against each other (`schedule/handover.py`), by rates that the destination measured.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from qwengyre.engine.base import HandsOver
from qwengyre.schedule.handover import Rates, worth_moving
from qwengyre.transfer.kv import KVTicket, KVTransfer
from qwengyre.types import KVBlock

if TYPE_CHECKING:
    from qwengyre.cluster.crew import Crew

_LOG = logging.getLogger(__name__)
LIMIT_S = 60.0
"""A hand-over that takes longer has failed; calls wait for their keys and values no longer than this."""
PARCEL_BYTES = 32 * 2**20
_AT_ONCE = 2
"""Parcels under way from one cell: they take memory a second time while they are."""


@dataclass(frozen=True)
class Plan:
    """What an export is asked for: destination -> executions that go there, and what is known of its rates."""

    executions: Mapping[int, tuple[str, ...]]
    rates: Mapping[int, Rates]


@dataclass(frozen=True)
class Parcel:
    """Blocks that travel together to `cell`, and the executions whose blocks are all in it."""

    id: str
    cell: int
    executions: tuple[str, ...]
    blocks: tuple[str, ...]
    tokens: int
    num_bytes: int


@dataclass(frozen=True)
class Exported:
    """What a source pinned for others, and the tokens of sequences that are cheaper to compute again."""

    parcels: tuple[Parcel, ...]
    left: int


@dataclass(frozen=True)
class HandOver:
    """What became of a leaving cell's keys and values. `failures` are one line each; their tokens are recomputed."""

    moved_tokens: int = 0
    recomputed_tokens: int = 0
    seconds: float = 0.0
    failures: tuple[str, ...] = ()


class CellKV:
    """A cell's side: its engine, which may be one that hands nothing over, and its transfer. `blocking(work, *args)`
    runs `work` off the event loop."""

    def __init__(self, engine: object, transfer: KVTransfer, blocking: Callable[..., Awaitable[Any]]) -> None:
        self._engine = engine if isinstance(engine, HandsOver) else None
        self._transfer = transfer
        self._blocking = blocking
        self._numbers = count()
        self._pinned: dict[str, tuple[KVBlock, ...]] = {}
        self._sent: dict[str, KVTicket] = {}
        self._received = (0, 0.0)
        """Bytes and seconds of all imports so far."""

    async def expect(self, executions: Collection[str], limit_s: float) -> Rates | None:
        """Destination: calls of these wait for `receive`, at most `limit_s`; 0: no longer. Its rates as measured; None
        when this engine takes no keys and values."""
        if self._engine is None:
            return None
        await self._engine.expect_kv(executions, limit_s)
        received, seconds = self._received
        prefill = (await self._engine.stats()).get("prefill_rate", 0.0)  # type: ignore[attr-defined]
        return Rates(received / seconds if received else None, prefill or None)

    async def export(self, plan: Plan) -> Exported:
        """Source: end the calls of these executions, pin what is worth moving, free the rest."""
        if self._engine is None:
            return Exported((), 0)
        cells = {name: cell for cell, names in plan.executions.items() for name in names}
        blocks = await self._engine.export_kv(list(cells))
        owners: dict[tuple[int, str], list[KVBlock]] = defaultdict(list)
        left: list[KVBlock] = []
        for block in blocks:
            homes = {cells[name]: name for name in sorted(block.handles, reverse=True)}
            paying = [home for home in homes if _worth(block, plan.rates.get(home))]
            for home in paying:
                owners[home, homes[home]].append(block)
            if not paying:
                left.append(block)
        parcels = tuple(self._parcel(cell, named) for cell, named in _packed(owners))
        await self._engine.free_kv([block.id for block in left], moved=False)
        return Exported(parcels, sum(block.tokens for block in left))

    async def send(self, parcel: str) -> KVTicket:
        """Source: expose a parcel's blocks, for its destination to pull."""
        if parcel not in self._sent:
            self._sent[parcel] = await self._blocking(self._transfer.expose, self._pinned[parcel])
        return self._sent[parcel]

    async def receive(self, parcel: Parcel, ticket: KVTicket, exposing_s: float) -> int:
        """Destination: pull and keep a parcel; the calls that wait for it go on in any case. The tokens kept."""
        assert self._engine is not None, "expect said that this engine takes nothing"
        began = time.monotonic() - exposing_s
        try:
            blocks = await self._blocking(self._transfer.pull, ticket)
        except Exception:
            await self._engine.expect_kv(parcel.executions, 0)
            raise
        kept = await self._engine.import_kv(blocks, parcel.executions)
        received, seconds = self._received
        self._received = received + parcel.num_bytes, seconds + time.monotonic() - began
        return kept

    async def free(self, parcels: Collection[str], moved: bool) -> None:
        """Source: their destinations confirmed them (`moved`), or nobody wants them any more. Idempotent."""
        for parcel in parcels:
            blocks = self._pinned.pop(parcel, ())
            others = {block.id for kept in self._pinned.values() for block in kept}
            if (ticket := self._sent.pop(parcel, None)) is not None:
                await self._blocking(self._transfer.free, ticket)
            if self._engine is not None:
                await self._engine.free_kv([block.id for block in blocks if block.id not in others], moved)

    def _parcel(self, cell: int, named: Mapping[str, list[KVBlock]]) -> Parcel:
        blocks = {block.id: block for mine in named.values() for block in mine}
        id = f"parcel {next(self._numbers)}"
        self._pinned[id] = tuple(blocks.values())
        tokens = sum(block.tokens for block in blocks.values())
        return Parcel(id, cell, tuple(named), tuple(blocks), tokens, sum(b.data.nbytes for b in blocks.values()))


def _worth(block: KVBlock, rates: Rates | None) -> bool:
    return rates is not None and worth_moving(block.tokens, block.data.nbytes // block.tokens, rates)


def _packed(owners: Mapping[tuple[int, str], list[KVBlock]]) -> Iterable[tuple[int, dict[str, list[KVBlock]]]]:
    """Cell and executions of each parcel: whole executions, up to about PARCEL_BYTES."""
    parcel: dict[str, list[KVBlock]] = {}
    size, last = 0, -1
    for (cell, name), blocks in sorted(owners.items(), key=lambda item: item[0]):
        if parcel and (cell != last or size >= PARCEL_BYTES):
            yield last, parcel
            parcel, size = {}, 0
        parcel[name], last = blocks, cell
        size += sum(block.data.nbytes for block in blocks)
    if parcel:
        yield last, parcel


async def hand_over(crew: "Crew", cell: int, homes: Mapping[str, int], limit_s: float = LIMIT_S) -> HandOver:
    """End the calls of `homes` (execution -> its new cell) at `cell`, and move what it has of them, in parallel.

    Call it when the cell is shut and every gateway acknowledged routes that name the new homes. Never raises: what
    fails is recomputed, and stands in `failures`.
    """
    began = crew.clock()
    move = _Moving(crew, cell, limit_s)
    by_cell: dict[int, tuple[str, ...]] = defaultdict(tuple)
    for name, home in homes.items():
        if home != cell and home in crew.rolling:
            by_cell[home] += (name,)
    try:
        async with asyncio.timeout(limit_s):
            await move.run(by_cell)
    except TimeoutError:
        move.failures.append(f"cell {cell}: keys and values were not handed over in {limit_s:.0f} s")
    recomputed = move.left + sum(parcel.tokens for parcel in move.parcels) - move.moved
    return HandOver(move.moved, recomputed, crew.clock() - began, tuple(move.failures))


@dataclass
class _Moving:
    """One hand-over out of `source`."""

    crew: "Crew"
    source: int
    limit_s: float
    moved: int = 0
    left: int = 0
    parcels: tuple[Parcel, ...] = ()
    failures: list[str] = field(default_factory=list[str])

    async def run(self, by_cell: Mapping[int, tuple[str, ...]]) -> None:
        answers = await asyncio.gather(*(self._expect(home, names, self.limit_s) for home, names in by_cell.items()))
        rates = {home: rate for home, rate in zip(by_cell, answers, strict=True) if rate is not None}
        waiting = {home: set(by_cell[home]) for home in rates}
        try:
            exported: Exported = await self._ask(self.source, "export_kv", Plan(dict(by_cell), rates))
            self.left, self.parcels = exported.left, exported.parcels
            coming: dict[int, set[str]] = defaultdict(set)
            for parcel in self.parcels:
                coming[parcel.cell] |= {*parcel.executions}
            await asyncio.gather(*(self._expect(home, waiting[home] - coming[home], 0) for home in waiting))
            waiting = coming
            slots = asyncio.Semaphore(_AT_ONCE)
            await asyncio.gather(*(self._carry(parcel, slots) for parcel in self.parcels))
        except Exception as error:
            self._failed("export", self.source, error)
            await asyncio.gather(*(self._expect(home, names, 0) for home, names in waiting.items()))

    async def _carry(self, parcel: Parcel, slots: asyncio.Semaphore) -> None:
        """One parcel: sent, imported, confirmed, freed. A failure leaves its tokens to be recomputed."""
        kept = 0
        try:
            async with slots:
                began = self.crew.clock()
                ticket: KVTicket = await self._ask(self.source, "send_kv", parcel.id)
                spent = self.crew.clock() - began
                kept = await self._ask(parcel.cell, "import_kv", parcel, ticket, spent)
                self.moved += kept
        except Exception as error:
            self._failed("import", parcel.cell, error)
            await self._expect(parcel.cell, parcel.executions, 0)
        try:
            await self._ask(self.source, "free_kv", (parcel.id,), kept > 0)
        except Exception as error:
            self._failed("free", self.source, error)

    async def _expect(self, home: int, executions: Collection[str], limit_s: float) -> Rates | None:
        if not executions:
            return None
        try:
            return await self._ask(home, "expect_kv", tuple(executions), limit_s)
        except Exception as error:
            if limit_s:
                self._failed("expect", home, error)
            return None

    async def _ask(self, cell: int, method: str, *args: Any) -> Any:
        live = self.crew.live.get(cell)
        if live is None:
            raise LookupError(f"cell {cell} is gone")
        remote = getattr(self.crew.handle(cell), method).remote
        return await remote(*args, incarnation=live.report.incarnation)

    def _failed(self, what: str, cell: int, error: Exception) -> None:
        said = (str(error).strip().splitlines() or [""])[-1]
        self.failures.append(f"{what} at cell {cell}: {type(error).__name__}: {said}")
        _LOG.warning("hand-over out of cell %d, %s", self.source, self.failures[-1])
