"""The micro-steps of the open step, by the seconds that each takes a cell."""

from collections import deque
from dataclasses import dataclass, field


@dataclass
class SimLedger:
    """`pending` in the order of admission; `claimed` and `counted` are numbers."""

    step: int = -1
    pending: deque[float] = field(default_factory=deque[float])
    claimed: int = 0
    counted: int = 0

    def claim(self) -> float:
        """The next micro-step is somebody's."""
        self.claimed += 1
        return self.pending.popleft()

    def give_back(self, seconds: float) -> None:
        """Who claimed it left or died: it is the next one again."""
        self.claimed -= 1
        self.pending.appendleft(seconds)

    def count(self) -> None:
        """It is in the core's gradient."""
        self.claimed -= 1
        self.counted += 1

    @property
    def open(self) -> int:
        """Not counted."""
        return len(self.pending) + self.claimed
