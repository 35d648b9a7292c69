"""One execution's life, as control sees it: token > harness > sealed token > frozen work > settlement."""

import secrets
from dataclasses import dataclass, field

from qwengyre.cluster.crew import Books, Crew
from qwengyre.cluster.routing import Router
from qwengyre.schedule import events as ev
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
        name, query, hands = str(execution), self.books.query_of(execution.group), self.crew.hands
        token = secrets.token_urlsafe(24)
        self.router.open(execution, cell)
        await hands.gateway.open.remote(name, token)
        await self.router.push()
        self.crew.report(ev.Placed, execution)
        ending: Ending = await hands.box.run.remote(name, query, token)
        await hands.gateway.seal.remote(name)
        self.router.forget(execution)
        self.crew.report(ev.Ended, execution, ending)
        settlement: Settlement = await hands.box.settle.remote(name, query, ending)
        self.running.discard(execution)
        self.books.note(execution, ending, settlement)
        self.crew.report(ev.Settled, execution, settlement.verdict, settlement.score)
