"""A cell in virtual time: the executions that live on it share its speed, and it claims micro-steps while it trains.

The executions of a cell all progress at the same rate R(n), so the cell keeps two clocks, of progress and of activity,
and an execution ends when one of them reaches the mark that was set when it came. Nothing is touched per execution
while time passes.
"""

import heapq
from dataclasses import dataclass, field
from typing import NamedTuple

from qwengyre.sim.executions import Draw
from qwengyre.sim.rates import Rates
from qwengyre.types import ExecutionId, Role


@dataclass
class Work:
    """An execution that was placed. Seconds of unloaded progress and of active time, up to when it last came."""

    id: ExecutionId
    draw: Draw
    done_s: float = 0.0
    active_s: float = 0.0
    home: int = -1
    stamp: int = 0
    """Grows whenever it leaves a cell: marks set before are void."""
    running: bool = False
    came: tuple[float, float] = (0.0, 0.0)
    """The clocks of its cell when it came."""


class Next(NamedTuple):
    """The next end on a cell, if nothing changes: after these seconds, this execution, by its time-out or not."""

    seconds: float
    work: Work
    timed_out: bool


@dataclass
class SimCell:
    """`life` grows with every change of role or restart: what was planned for an earlier one is void."""

    rates: Rates
    timeout_s: float
    role: Role = Role.ROLLOUT
    incarnation: int = 0
    life: int = 0
    plan: int = 0
    """Grows whenever the next end is planned anew."""
    claim: float | None = None
    """Seconds of the micro-step in work."""
    frozen: bool = False
    """Keys and values are made again: executions are active and make no progress."""
    guests: dict[ExecutionId, Work] = field(default_factory=dict[ExecutionId, Work])
    running: int = 0
    """Guests that make progress while the cell is in rollout: those that were moved here stall at first."""
    at: float = 0.0
    progress: float = 0.0
    active: float = 0.0
    role_s: dict[Role, float] = field(default_factory=dict[Role, float])
    guest_s: float = 0.0
    """Seconds of guests in rollout."""
    _by_work: list[tuple[float, int, Work, int]] = field(default_factory=list[tuple[float, int, Work, int]])
    _by_time: list[tuple[float, int, Work, int]] = field(default_factory=list[tuple[float, int, Work, int]])
    _number: int = 0

    def advance(self, now: float) -> None:
        """Let time pass until `now`."""
        seconds, self.at = now - self.at, now
        self.role_s[self.role] = self.role_s.get(self.role, 0.0) + seconds
        if self.role is Role.ROLLOUT and self.guests:
            self.guest_s += seconds * len(self.guests)
            self.active += seconds
            if not self.frozen:
                self.progress += seconds * self.rates[self.running]

    def enter(self, work: Work, now: float) -> None:
        """The execution goes on here."""
        self.advance(now)
        work.running, work.came = True, (self.progress, self.active)
        self.running += 1
        self._number += 1
        stamp = (self._number, work, work.stamp)
        heapq.heappush(self._by_work, (self.progress + work.draw.work_s - work.done_s, *stamp))
        heapq.heappush(self._by_time, (self.active + self.timeout_s - work.active_s, *stamp))

    def leave(self, work: Work, now: float) -> None:
        """Inverse of `enter`; also for one that stalls."""
        self.advance(now)
        del self.guests[work.id]
        work.stamp += 1
        if work.running:
            work.running = False
            work.done_s += self.progress - work.came[0]
            work.active_s += self.active - work.came[1]
            self.running -= 1

    def next_end(self) -> Next | None:
        """If nothing changes. None: nobody will end here."""
        if self.role is not Role.ROLLOUT:
            return None
        by_time = _first(self._by_time)
        timed_out = None if by_time is None else Next(max(0.0, by_time[0] - self.active), by_time[2], True)
        by_work = None if self.frozen else _first(self._by_work)
        if by_work is None:
            return timed_out
        seconds = max(0.0, by_work[0] - self.progress) / self.rates[self.running]
        if timed_out is None or seconds < timed_out.seconds:
            return Next(seconds, by_work[2], False)
        return timed_out


def _first(heap: list[tuple[float, int, Work, int]]) -> tuple[float, int, Work, int] | None:
    """The first mark that still holds."""
    while heap and heap[0][3] != heap[0][2].stamp:
        heapq.heappop(heap)
    return heap[0] if heap and heap[0][0] != float("inf") else None
