"""The ledger of micro-steps of the open step: pending -> claimed(cell, incarnation, step) -> counted at the core.

Cells claim micro-steps atomically from one shared queue, so a faster or earlier cell takes more. Near the end of the
queue a claim takes a part of a micro-step (some of its sequences), so that all cells finish together. The scheduler
counts whole micro-steps: one is pending while a part of it is, and counted when all its parts are.

Lives in control's event loop (no locks): claims wait on an event, everything else is immediate.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field

from qwengyre.errors import RefusedError
from qwengyre.trajectory.pack import split
from qwengyre.types import MicroStep


@dataclass(frozen=True, eq=False)
class Claim:
    """`cell` at `incarnation` works on `micro_step` (or part of one) for `step`."""

    step: int
    cell: int
    incarnation: int
    micro_step: MicroStep

    @property
    def name(self) -> str:
        """Of the micro-step."""
        return self.micro_step.name


@dataclass
class Ledger:
    """One open step at a time. `counted` holds the names whose gradient lies at the core."""

    step: int = -1
    pending: deque[MicroStep] = field(default_factory=deque[MicroStep])
    claimed: dict[str, Claim] = field(default_factory=dict[str, Claim])
    counted: set[str] = field(default_factory=set[str])
    workers: dict[int, int] = field(default_factory=dict[int, int])
    """Cells that claim -> their incarnation."""
    _whole: dict[str, MicroStep] = field(default_factory=dict[str, MicroStep])
    """The open step's micro-steps, as they were added."""
    _origin: dict[str, str] = field(default_factory=dict[str, str])
    """Name of a micro-step or part -> name of the micro-step that was added."""
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def open(self, step: int) -> None:
        """Begin `step` with an empty ledger. AssertionError while an earlier step has work left."""
        assert not self.pending, f"step {self.step} has pending work"
        assert not self.claimed, f"step {self.step} has claimed work"
        self.abandon()
        self.step = step

    def abandon(self) -> None:
        """Forget the open step and everyone who works on it: the run rolls back."""
        for container in (self.pending, self.claimed, self.counted, self._whole, self._origin):
            container.clear()

    def add(self, micro_steps: list[MicroStep]) -> None:
        """Make micro-steps claimable; a name that was added before is not added again."""
        for micro_step in micro_steps:
            if micro_step.name not in self._whole:
                self._whole[micro_step.name] = micro_step
                self._origin[micro_step.name] = micro_step.name
                self.pending.append(micro_step)
        self._announce()

    def enroll(self, cell: int, incarnation: int) -> None:
        """The cell may claim from now on."""
        self.workers[cell] = incarnation

    def dismiss(self, cell: int) -> None:
        """The cell claims nothing more: its waiting claim ends with None. What it has claimed stays claimed."""
        self.workers.pop(cell, None)
        self._announce()

    def offers(self, cell: int) -> bool:
        """Would `claim` answer at once, with work?"""
        return cell in self.workers and bool(self.pending)

    async def claim(self, cell: int, incarnation: int) -> Claim | None:
        """Wait for a pending micro-step and take it, or a part of it. None: dismissed.

        Raises RefusedError for an older incarnation than the one enrolled.
        """
        while self._enrolled(cell, incarnation) and not self.pending:
            await self._news.wait()
        if cell not in self.workers:
            return None
        claim = Claim(self.step, cell, incarnation, self._next())
        self.claimed[claim.name] = claim
        return claim

    def holds(self, claim: Claim) -> bool:
        """Is it still this cell's?"""
        return self.claimed.get(claim.name) is claim and claim.step == self.step

    def count(self, claim: Claim) -> bool:
        """The gradient of `claim` lies at the core. False for a claim that is no longer this ledger's (it returned)."""
        if not self.holds(claim):
            return False
        del self.claimed[claim.name]
        self.counted.add(claim.name)
        return True

    def give_back(self, cell: int) -> int:
        """The cell is gone: its uncounted claims are pending again, first in line. Returns how many."""
        lost = [c for c in self.claimed.values() if c.cell == cell]
        for claim in lost:
            del self.claimed[claim.name]
            self.pending.appendleft(claim.micro_step)
        if lost:
            self._announce()
        return len(lost)

    def core_lost(self) -> int:
        """The gradient is gone: every micro-step of the open step is pending again, whole. Returns how many."""
        whole = list(self._whole.values())
        step = self.step
        self.abandon()
        self.step = step
        self.add(whole)
        return len(whole)

    @property
    def backlog(self) -> tuple[int, int, int]:
        """(pending, claimed, counted), in whole micro-steps: each is in one of them."""
        pending = {self._origin[m.name] for m in self.pending}
        claimed = {self._origin[name] for name in self.claimed} - pending
        return len(pending), len(claimed), len(self._whole) - len(pending) - len(claimed)

    def _enrolled(self, cell: int, incarnation: int) -> bool:
        if incarnation < self.workers.get(cell, incarnation):
            raise RefusedError(f"cell {cell} claims as {incarnation}, it is {self.workers[cell]} by now")
        return cell in self.workers

    def _next(self) -> MicroStep:
        """The first pending one; near the end, about half a share of what is left."""
        micro_step = self.pending.popleft()
        workers = len(self.workers)
        if workers == 1 or len(self.pending) + 1 >= 2 * workers or len(micro_step.lengths) == 1:
            return micro_step
        left = micro_step.tokens + sum(m.tokens for m in self.pending)
        first, rest = split(micro_step, left // (2 * workers))
        if rest is None:
            return micro_step
        for part in (first, rest):
            self._origin[part.name] = self._origin[micro_step.name]
        self.pending.appendleft(rest)
        return first

    def _announce(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
