"""The run goes on after the death of control, of the core, or of the command: three causes, one recovery.

scheduler   the journal, folded again (not needed when control lives)
executions  those that a box still runs go on; those that ended are settled; the others are lost and dropped
weights     the newest complete checkpoint, under a new version: RolledBack, then a CellReady for each cell
the rest    steps after the checkpoint are trained again from journals and scores; nothing is rolled out twice
"""

from collections.abc import Sequence
from dataclasses import dataclass

from qwengyre.cluster.boxes import BoxReport
from qwengyre.cluster.checkpoints import Checkpoint
from qwengyre.cluster.journal import Entry
from qwengyre.cluster.supervise import Supervisor
from qwengyre.cluster.world import Cluster
from qwengyre.schedule import events as ev
from qwengyre.schedule.actions import Action, Rehome
from qwengyre.schedule.state import Life, State
from qwengyre.schedule.step import asked
from qwengyre.types import Ending, ExecutionId, Settlement, Verdict


@dataclass(frozen=True)
class Past:
    """What a journal says: the state after it, and how executions ended that are not settled."""

    state: State
    endings: dict[ExecutionId, Ending]


def past(state: State, entries: Sequence[Entry]) -> Past:
    """`entries` are those of the journal that `state` was folded from."""
    endings: dict[ExecutionId, Ending] = {}
    for entry in entries:
        if isinstance(entry.event, ev.Ended):
            endings.setdefault(entry.event.execution, entry.event.ending)
    return Past(state, endings)


async def attach(world: Cluster, past: Past, box: BoxReport) -> list[ev.Event]:
    """Take up every execution that is not settled. Returns the events of those that are lost.

    One that was asked for and that a living box has not heard of is not lost: its Place is still asked.
    """
    lost: list[ev.Event] = []
    for execution, life in sorted((e, x.life) for e, x in past.state.executions.items()):
        if life is Life.ENDED:
            world.spawn(world.executions.attach(execution, past.endings[execution]), "attach")
        elif life is Life.RUNNING and str(execution) in box.known:
            world.spawn(world.executions.attach(execution), "attach")
        elif life is Life.RUNNING or box.fresh:
            lost += await _lose(world, execution)
    return lost


async def _lose(world: Cluster, execution: ExecutionId) -> list[ev.Event]:
    await world.crew.call("the gateway", world.crew.hands.gateway.seal, str(execution))
    reason = "the run was interrupted while it was open"
    world.books.note(execution, Ending.LOST, Settlement(Verdict.DROPPED, reason=reason))
    at = world.crew.clock()
    return [ev.Ended(at, execution, Ending.LOST), ev.Settled(at, execution, Verdict.DROPPED, 0.0)]


async def begin(world: Cluster, supervisor: Supervisor) -> list[ev.Event]:
    """The events of a run that begins: all cells hold the model as given."""
    events: list[ev.Event] = [ev.Started(world.crew.clock())]
    return events + await _cells(world, supervisor, None)


async def return_to(world: Cluster, supervisor: Supervisor, state: State, to: Checkpoint | None) -> list[ev.Event]:
    """The events of a run that goes back to a checkpoint (None: to the model as given)."""
    world.crew.version = state.next_version
    events: list[ev.Event] = [ev.RolledBack(world.crew.clock(), to.step if to else 0, state.next_version)]
    return events + await _cells(world, supervisor, to)


async def _cells(world: Cluster, supervisor: Supervisor, checkpoint: Checkpoint | None) -> list[ev.Event]:
    reports = await supervisor.open_cells(world.crew.version, checkpoint.folder if checkpoint else None)
    return [ev.CellReady(world.crew.clock(), r.cell, r.incarnation, r.capacity) for r in reports]


def again(state: State, begun: Sequence[Action]) -> list[Action]:
    """What a new control must begin: everything asked and not answered. `begun` was asked by the recovery's events."""
    return [*(action for action in begun if isinstance(action, Rehome)), *asked(state)]
