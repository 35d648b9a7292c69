"""Where model calls go: control's routes, pushed whole to the gateway, which acknowledges their epoch."""

from dataclasses import dataclass, field

from qwengyre.cluster.crew import Crew
from qwengyre.types import ExecutionId, Place, Routes


@dataclass
class Router:
    """`homes` maps every execution with an unsealed token to its cell."""

    crew: Crew
    homes: dict[str, int] = field(default_factory=dict[str, int])
    epoch: int = 0

    def home(self, homes: dict[ExecutionId, int]) -> None:
        """New homes, from the next push on."""
        self.homes |= {str(execution): cell for execution, cell in homes.items()}

    def forget(self, execution: ExecutionId) -> None:
        """The execution's token is sealed."""
        self.homes.pop(str(execution), None)

    async def push(self) -> int:
        """Push the routes of now: cells in rollout are routable. Returns the epoch, once it is acknowledged."""
        self.epoch += 1
        epoch, crew = self.epoch, self.crew
        cells = {c: Place(crew.live[c].report.url, crew.live[c].report.incarnation) for c in crew.rolling}
        await crew.hands.gateway.route.remote(Routes(epoch, cells, dict(self.homes)))
        return epoch
