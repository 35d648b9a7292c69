"""The ledger of micro-steps of the open step: pending -> claimed(cell, incarnation) -> counted.

Cells claim micro-steps atomically from one shared queue, so a faster or earlier cell takes more. Lives in control's
event loop (no locks): claims wait on a condition, everything else is immediate.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field

from qwengyre.types import MicroStep


@dataclass(frozen=True)
class Claim:
    """`cell` at `incarnation` works on `micro_step` for `step`."""

    step: int
    cell: int
    incarnation: int
    micro_step: MicroStep


@dataclass
class Ledger:
    """One open step at a time. `counted` holds the names whose gradient lies at the core."""

    step: int = -1
    pending: deque[MicroStep] = field(default_factory=deque[MicroStep])
    claimed: dict[str, Claim] = field(default_factory=dict[str, Claim])
    counted: set[str] = field(default_factory=set[str])
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def open(self, step: int) -> None:
        """Begin `step` with an empty ledger. AssertionError while an earlier step has work left."""
        assert not self.pending, f"step {self.step} has pending work"
        assert not self.claimed, f"step {self.step} has claimed work"
        self.step = step
        self.counted = set()

    def add(self, micro_steps: list[MicroStep]) -> None:
        """Make micro-steps claimable; a name that was added before is not added again."""
        known = {m.name for m in self.pending} | set(self.claimed) | self.counted
        self.pending.extend(m for m in micro_steps if m.name not in known)
        self._announce()

    async def claim(self, cell: int, incarnation: int) -> Claim:
        """Wait for a pending micro-step and take it. Cancel to stop waiting."""
        while not self.pending:
            await self._news.wait()
        micro_step = self.pending.popleft()
        claim = Claim(self.step, cell, incarnation, micro_step)
        self.claimed[micro_step.name] = claim
        return claim

    def count(self, claim: Claim) -> bool:
        """The gradient of `claim` lies at the core. False for a claim that is no longer this ledger's (it returned)."""
        held = self.claimed.get(claim.micro_step.name)
        if held != claim or claim.step != self.step:
            return False
        del self.claimed[claim.micro_step.name]
        self.counted.add(claim.micro_step.name)
        return True

    def give_back(self, cell: int) -> int:
        """The cell is gone: its uncounted claims are pending again, first in line. Returns how many."""
        lost = [c for c in self.claimed.values() if c.cell == cell]
        for claim in lost:
            del self.claimed[claim.micro_step.name]
            self.pending.appendleft(claim.micro_step)
        if lost:
            self._announce()
        return len(lost)

    def _announce(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
