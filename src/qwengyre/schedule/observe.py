"""Fold an event into the state. Late and repeated events (answered, settled, of an old incarnation) change nothing."""

from collections.abc import Callable
from typing import Any

from qwengyre.schedule import events as ev
from qwengyre.schedule.actions import Void, Weigh
from qwengyre.schedule.burst import boundary, open_step
from qwengyre.schedule.evaluate import give_up, visitor_ended, visitor_settled
from qwengyre.schedule.state import NOWHERE, Life, Phase, Stage
from qwengyre.schedule.turn import Turn
from qwengyre.types import Role, Verdict


def observe(turn: Turn, event: ev.Event) -> None:
    """What happened is now part of the state. Raises ValueError for an event that cannot be."""
    turn.put(at=max(turn.state.at, event.at))
    _FOLD[type(event)](turn, event)


def _started(turn: Turn, _: ev.Started) -> None:
    if turn.state.phase is Phase.BEFORE:
        boundary(turn)


# --- executions ------------------------------------------------------------------------------------------------------


def _placed(turn: Turn, event: ev.Placed) -> None:
    state = turn.state
    if turn.answer(f"place {event.execution}"):
        running = state.executions[event.execution].but(life=Life.RUNNING)
        trained = event.execution.evaluation < 0
        turn.put(started=state.started + trained, executions=state.executions.set(event.execution, running))


def _ended(turn: Turn, event: ev.Ended) -> None:
    execution = turn.state.executions.get(event.execution)
    if execution is None or execution.life is Life.ENDED:
        return
    turn.answer(f"place {event.execution}")
    turn.vacate(event.execution, execution.home)
    over = execution.but(life=Life.ENDED, home=NOWHERE)
    turn.put(executions=turn.state.executions.set(event.execution, over))
    if event.execution.evaluation >= 0:
        visitor_ended(turn, event.execution, event.ending)
    else:
        turn.put(ended=turn.state.ended + 1)


def _settled(turn: Turn, event: ev.Settled) -> None:
    state = turn.state
    execution = state.executions.get(event.execution)
    if execution is None:
        return
    if execution.life is not Life.ENDED:
        raise ValueError(f"Settled({event.execution}) before its Ended: report Ended first")
    turn.put(executions=state.executions.delete(event.execution))
    if event.execution.evaluation >= 0:
        visitor_settled(turn, event.execution)
        return
    group = state.groups[event.execution.group]
    dropped = group.dropped + (event.verdict is Verdict.DROPPED)
    group = group.but(settled=group.settled + 1, dropped=dropped)
    turn.put(groups=state.groups.set(event.execution.group, group))
    if group.settled == state.plan.group_size:
        _complete(turn, event.execution.group)


def _complete(turn: Turn, index: int) -> None:
    """All N are settled: weigh the group, or say why it can never be trained."""
    size, group = turn.state.plan.group_size, turn.state.groups[index]
    if size - group.dropped >= 2:
        turn.put(groups=turn.state.groups.set(index, group.but(stage=Stage.WEIGHING)))
        turn.ask(Weigh, f"weigh {index}", group=index)
    else:
        turn.put(groups=turn.state.groups.set(index, group.but(stage=Stage.VOID)))
        turn.leave_cohort(group.born)
        turn.ask(Void, group=index, reason=f"{group.dropped} of {size} executions were dropped, at least 2 must remain")


def _weighed(turn: Turn, event: ev.Weighed) -> None:
    if not turn.answer(f"weigh {event.group}"):
        return
    state = turn.state
    group = state.groups[event.group].but(stage=Stage.READY, micro_steps=event.micro_steps, order=state.next_order)
    turn.put(
        groups=state.groups.set(event.group, group),
        ready=(*state.ready, event.group),
        next_order=state.next_order + 1,
    )


# --- cells -----------------------------------------------------------------------------------------------------------


def _cell_ready(turn: Turn, event: ev.CellReady) -> None:
    cell = turn.state.cells[event.cell]
    if event.incarnation < cell.incarnation:
        return
    if cell.role is not Role.LOST and -1 < cell.incarnation < event.incarnation:
        _lose(turn, event.cell)  # its loss was not reported: the restart says it
    turn.put_cell(event.cell, incarnation=event.incarnation, capacity=event.capacity)
    if turn.state.cells[event.cell].role is Role.LOST:
        turn.put_cell(event.cell, waits=True)


def _capacity(turn: Turn, event: ev.Capacity) -> None:
    turn.put_cell(event.cell, capacity=event.executions)


def _cell_lost(turn: Turn, event: ev.CellLost) -> None:
    if event.incarnation >= turn.state.cells[event.cell].incarnation:
        _lose(turn, event.cell)
        turn.put_cell(event.cell, incarnation=event.incarnation + 1)  # the least that a successor can have


def _lose(turn: Turn, index: int) -> None:
    turn.answer(f"move {index}")
    _evict(turn, index)
    if index == 0:
        turn.put(core_lost=True)


def _evict(turn: Turn, index: int) -> None:
    """The cell is LOST and its executions have no home."""
    for execution in sorted(turn.state.cells[index].homes):
        turn.vacate(execution, index)
        turn.house(execution, NOWHERE)
        executions = turn.state.executions
        turn.put(executions=executions.set(execution, executions[execution].but(home=NOWHERE)))
    turn.put_cell(index, role=Role.LOST, waits=False)


def _moved(turn: Turn, event: ev.Moved) -> None:
    if event.role not in (Role.ROLLOUT, Role.TRAINING):
        raise ValueError(f"Moved({event.cell}, {event.role}): a move ends in rollout or training")
    if turn.answer(f"move {event.cell}"):
        turn.put_cell(event.cell, role=event.role)


# --- steps -----------------------------------------------------------------------------------------------------------


def _backlog(turn: Turn, event: ev.Backlog) -> None:
    if turn.state.phase is Phase.OPEN and event.step == turn.state.step:
        turn.put(pending=event.pending, claimed=event.claimed, counted=event.counted)


def _step_closed(turn: Turn, event: ev.StepClosed) -> None:
    state = turn.state
    if event.step != state.step or not turn.answer("close"):
        return
    _forget_step(turn)
    turn.put(step=state.step + 1)
    if turn.state.step < state.burst_end:
        open_step(turn)
    else:
        turn.put(phase=Phase.ENDING, admitted=0, expected=0, pending=0, claimed=0, counted=0)


def _forget_step(turn: Turn) -> None:
    """OpenStep and Admit have no answer of their own: the end of their step is it."""
    for about in [about for about in turn.state.asked if about == "open" or about.startswith("admit ")]:
        turn.answer(about)


def _published(turn: Turn, event: ev.Published) -> None:
    state = turn.state
    if state.phase is not Phase.PUBLISHING or event.version != state.next_version - 1:
        return
    turn.answer("publish")
    turn.put(version=event.version)
    boundary(turn)


def _rolled_back(turn: Turn, event: ev.RolledBack) -> None:
    """Steps from `event.step` on are trained again from their groups' data; cells count from their next CellReady.

    Executions go on without a home. Weighs and Places stay asked; moves and everything of a step are withdrawn.
    """
    state = turn.state
    if event.version < state.next_version or not 0 <= event.step <= state.step:
        given = f"RolledBack(step={event.step}, version={event.version})"
        raise ValueError(
            f"{given}: steps 0..{state.step} can be returned to, versions from {state.next_version} on are new"
        )
    for index in range(state.plan.num_cells):
        _evict(turn, index)
    for about in [about for about in turn.state.asked if not about.startswith(("place ", "weigh "))]:
        turn.answer(about)
    again = [g for g, group in state.groups.items() if group.step >= event.step]
    for index in again:
        group = turn.state.groups[index].but(stage=Stage.READY, step=-1)
        turn.put(groups=turn.state.groups.set(index, group))
        turn.enter_cohort(group.born)
    ready = sorted((*state.ready, *again), key=lambda g: turn.state.groups[g].order)
    turn.put(
        ready=tuple(ready), core_lost=False, step=event.step, version=event.version, next_version=event.version + 1
    )
    give_up(turn, event.step)
    boundary(turn)


_FOLD: dict[type[ev.Event], Callable[[Turn, Any], None]] = {
    ev.Started: _started,
    ev.CellReady: _cell_ready,
    ev.Capacity: _capacity,
    ev.CellLost: _cell_lost,
    ev.Moved: _moved,
    ev.Placed: _placed,
    ev.Ended: _ended,
    ev.Settled: _settled,
    ev.Weighed: _weighed,
    ev.Backlog: _backlog,
    ev.StepClosed: _step_closed,
    ev.Published: _published,
    ev.RolledBack: _rolled_back,
}
