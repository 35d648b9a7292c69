"""One execution's life, as control sees it: token > harness > sealed token > frozen work > settlement."""

import secrets
from dataclasses import dataclass, field

from qwengyre.cluster.crew import Books, Crew
from qwengyre.cluster.routing import Router
from qwengyre.schedule import events as ev
from qwengyre.schedule.state import NOWHERE
from qwengyre.types import Ending, ExecutionId, Settlement


@dataclass
class Executions:
    """Runs executions; many at once. None of them knows of cells: one whose cell is lost goes on, its calls wait."""

    crew: Crew
    router: Router
    books: Books
    running: set[ExecutionId] = field(default_factory=set[ExecutionId])
    """Placed and not settled."""

    async def run(self, execution: ExecutionId, cell: int) -> None:
        """Produces Placed, Ended, Settled. Waits for the harness and the verifier, which have their own limits.

        For an execution that runs already, `cell` is its home from now on.
        """
        if execution in self.running:
            self.router.rehome([(execution, cell)])
            await self.router.push()
            return
        self.running.add(execution)
        name, crew = str(execution), self.crew
        token = secrets.token_urlsafe(24)
        self.router.open(execution, cell)
        await crew.call("the gateway", crew.hands.gateway.open, name, token, self.books.temperature_of(execution))
        await self.router.push()
        await crew.boxed.wait()
        begun_at = crew.box
        crew.report(ev.Placed, execution)
        await self._see_off(execution, token, begun_at)

    async def attach(self, execution: ExecutionId, ending: Ending | None = None) -> None:
        """An execution that began under an earlier control: the box still knows it, or it ended with `ending`."""
        self.running.add(execution)
        if ending is None:
            self.router.open(execution, NOWHERE)
            await self._see_off(execution, "", self.crew.box)
        else:
            await self._settle(execution, ending)

    async def _see_off(self, execution: ExecutionId, token: str, box: int) -> None:
        """From the harness to the settlement. A box of another incarnation than `box` answers that it is lost."""
        crew, name = self.crew, str(execution)
        query = self.books.query_of(execution)
        ending: Ending = await crew.call("the box", crew.hands.box.run, name, query, token, box)
        await crew.call("the gateway", crew.hands.gateway.seal, name)
        self.router.forget(execution)
        crew.report(ev.Ended, execution, ending)
        await self._settle(execution, ending)

    async def _settle(self, execution: ExecutionId, ending: Ending) -> None:
        crew, query = self.crew, self.books.query_of(execution)
        settlement: Settlement = await crew.call("the box", crew.hands.box.settle, str(execution), query, ending)
        self.running.discard(execution)
        self.books.note(execution, ending, settlement)
        crew.report(ev.Settled, execution, settlement.verdict, settlement.score)
