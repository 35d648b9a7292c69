"""Where model calls go: control's routes, pushed whole to the gateway, which acknowledges their epoch."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from qwengyre.cluster.crew import Crew
from qwengyre.schedule.state import NOWHERE
from qwengyre.types import ExecutionId, Place, Routes


@dataclass
class Router:
    """`homes` maps every execution with an unsealed token to its cell. One without an entry waits in the gateway."""

    crew: Crew
    homes: dict[str, int] = field(default_factory=dict[str, int])
    epoch: int = 0
    _known: set[str] = field(default_factory=set[str])
    _left: dict[int, dict[str, int]] = field(default_factory=dict[int, dict[str, int]])

    def open(self, execution: ExecutionId, cell: int) -> None:
        """The execution begins with its home at `cell`."""
        self._known.add(str(execution))
        self.homes[str(execution)] = cell

    def rehome(self, homes: Iterable[tuple[ExecutionId, int]]) -> None:
        """New homes, from the next push on. One that has ended meanwhile stays without a home."""
        for execution, cell in homes:
            if (name := str(execution)) not in self._known:
                continue
            if (old := self.homes.get(name, NOWHERE)) not in (cell, NOWHERE):
                self._left.setdefault(old, {})[name] = cell
            self.homes[name] = cell

    def forget(self, execution: ExecutionId) -> None:
        """The execution's token is sealed."""
        self._known.discard(str(execution))
        self.homes.pop(str(execution), None)
        for left in self._left.values():
            left.pop(str(execution), None)

    def evict(self, cell: int) -> None:
        """The cell is lost: its executions have no home until the scheduler gives them one."""
        self.homes = {name: home for name, home in self.homes.items() if home != cell}
        self._left.pop(cell, None)

    def leaving(self, cell: int) -> dict[str, int]:
        """Executions whose calls may be at a cell that begins to move -> their home from now on. Those that stay at
        home here are suspended with it. Told once."""
        suspended = {name: cell for name, home in self.homes.items() if home == cell}
        return self._left.pop(cell, {}) | suspended

    async def push(self) -> int:
        """Push the routes of now: cells in rollout are routable. Returns the epoch, once it is acknowledged."""
        self.epoch += 1
        epoch, crew = self.epoch, self.crew
        cells = {c: Place(crew.live[c].report.url, crew.live[c].report.incarnation) for c in crew.rolling}
        await crew.call("the gateway", crew.hands.gateway.route, Routes(epoch, cells, dict(self.homes)))
        return epoch
