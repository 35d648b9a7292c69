"""What a return to a checkpoint leaves alone, and what it ends."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from qwengyre.cluster.crew import Hands
from qwengyre.cluster.groups import Groups
from qwengyre.cluster.training import CoreLostError
from qwengyre.cluster.world import Cluster
from qwengyre.errors import RunError, StartingError
from qwengyre.schedule import events as ev
from qwengyre.trajectory.pack import Recipe
from qwengyre.types import Ending, ExecutionId, Role


class Gone(Exception):
    """What a dead process's handle raises."""


@pytest.fixture
def world(tmp_path: Path) -> Cluster:
    books: Any = None
    groups = Groups(tmp_path, 2, Recipe(0, 5, 1024, 512))
    return Cluster(Hands(None, None, None, (), (Gone,)), groups, books, lambda: 0.0)


async def test_a_return_keeps_executions_and_forgets_the_step(world: Cluster) -> None:
    """A Backlog, a Moved or a StepClosed of before would be taken for an answer to what is asked after."""
    execution, held = ExecutionId(0, 0), asyncio.Event()

    async def wait() -> None:
        await held.wait()
        world.crew.report(ev.Ended, execution, Ending.FINISHED)

    for name in ("place", "move", "publish"):
        world.spawn(wait(), name)
    world.crew.report(ev.Backlog, 0, 0, 0, 9)
    world.crew.report(ev.Placed, execution)
    world.crew.report(ev.Moved, 0, Role.TRAINING)
    world.crew.report(ev.StepClosed, 0)
    ledger, moves = world.training.ledger, world.moves
    await world.withdraw()
    assert world.training.ledger is not ledger
    assert world.moves is not moves
    held.set()
    heard = [await world.next_event(), await world.next_event()]
    assert heard == [ev.Placed(0.0, execution), ev.Ended(0.0, execution, Ending.FINISHED)]
    await asyncio.sleep(0)
    world.fail(RunError("nothing else was heard"))
    with pytest.raises(RunError, match="nothing else"):
        await world.next_event()


@pytest.mark.parametrize("error", [Gone("died"), StartingError("not yet"), CoreLostError("it died", -1)])
async def test_what_fails_with_a_process_ends_with_it(world: Cluster, error: Exception) -> None:
    """The death itself is told by the supervisor."""
    given_up: list[tuple[int, int, str]] = []
    world.lost = lambda *cell: given_up.append(cell)

    async def fail() -> None:
        raise error

    world.spawn(fail(), "close_step")
    await asyncio.sleep(0.01)
    world.fail(RunError("nothing else was heard"))
    with pytest.raises(RunError, match="nothing else"):
        await world.next_event()
    assert given_up == ([(0, -1, "it died")] if isinstance(error, CoreLostError) else [])


async def test_any_other_failure_is_the_runs(world: Cluster) -> None:
    async def fail() -> None:
        raise KeyError("a bug")

    world.spawn(fail(), "close_step")
    with pytest.raises(RunError, match="'close_step' failed: KeyError: 'a bug'"):
        await world.next_event()
