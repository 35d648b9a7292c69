"""Queue and placement: who gets which place, and where a leaving cell's executions go.

Places are counted from homes; there is no second counter.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace
from heapq import heapify, heappop, heapreplace

from qwengyre.schedule.actions import Place, Rehome
from qwengyre.schedule.plan import When
from qwengyre.schedule.state import Asked, Execution, Life, State
from qwengyre.schedule.turn import Turn
from qwengyre.types import ExecutionId

_OVERFULL = (When.ROOM_OR_BURST, When.SHARE)
"""Rules whose lent cells hand over what has room elsewhere, and suspend the rest."""


def place_queued(turn: Turn) -> None:
    """Queued executions go to the rollout cell with most free places (ties: the later cell): those of an evaluation
    first, since training waits for it, then the oldest."""
    if not turn.state.queued:
        return
    cells = turn.state.cells
    free = [(-cells[i].free, -i) for i in turn.state.rollout if cells[i].free > 0]
    heapify(free)
    while free and turn.state.queued:
        places, cell = free[0]
        cell = -cell
        heapreplace(free, (places + 1, -cell)) if places < -1 else heappop(free)
        execution = _leave_queue(turn)
        started = Execution(Life.PLACING, cell, turn.state.at)
        turn.put(executions=turn.state.executions.set(execution, started))
        turn.house(execution, cell)
        turn.ask(Place, f"place {execution}", execution=execution, cell=cell)


def _leave_queue(turn: Turn) -> ExecutionId:
    state, evaluation = turn.state, turn.state.evaluation
    if evaluation is None or not evaluation.queued:
        turn.put(next_place=state.next_place + 1)
        return state.execution(state.next_place)
    if evaluation.placed < evaluation.count:
        member, rest = evaluation.placed, evaluation.but(placed=evaluation.placed + 1)
    else:
        member, rest = evaluation.again[0], evaluation.but(again=evaluation.again[1:])
    turn.put(evaluation=rest, visitors=state.visitors + 1)
    return ExecutionId.of_evaluation(evaluation.number, member)


def place_homeless(turn: Turn) -> None:
    """Executions whose cell was lost get new homes as far as there is room, oldest first."""
    state = turn.state
    if state.homeless and (places := _places(state, ())):
        _rehome(turn, zip(sorted(state.homeless), places, strict=False))


def place_suspended(turn: Turn) -> None:
    """Executions suspended in cells that train go on in cells that roll out, as far as there is room, oldest first."""
    state = turn.state
    if state.plan.policy.when in _OVERFULL and (cells := [i for i in state.training if state.cells[i].homes]):
        hand_over(turn, cells)


def hand_over(turn: Turn, leaving: Collection[int]) -> None:
    """Executions at home in `leaving` cells move to cells that stay, longest-staying first: all of them by the paper's
    rule, none where they are suspended in place."""
    state, when = turn.state, turn.state.plan.policy.when
    if when not in (When.ROOM, *_OVERFULL):
        return
    executions = sorted(execution for cell in leaving for execution in state.cells[cell].homes)
    if not executions:
        return
    places = _places(state, leaving)
    assert when in _OVERFULL or len(places) >= len(executions), f"{len(executions)} executions for {len(places)} places"
    if places:
        _rehome(turn, zip(executions, places, strict=False))


def _rehome(turn: Turn, pairs: Iterable[tuple[ExecutionId, int]]) -> None:
    homes = tuple(pairs)
    for execution, cell in homes:
        old = turn.state.executions[execution]
        turn.vacate(execution, old.home)
        turn.house(execution, cell)
        turn.put(executions=turn.state.executions.set(execution, old.but(home=cell)))
        _redirect(turn, execution, cell)
    turn.ask(Rehome, homes=homes)


def _redirect(turn: Turn, execution: ExecutionId, cell: int) -> None:
    """A Place that was asked and not answered follows its execution: repeated later, it must name the new home."""
    about = f"place {execution}"
    if entry := turn.state.asked.get(about):
        assert isinstance(entry.action, Place)
        moved = Asked(replace(entry.action, cell=cell), entry.at)
        turn.put(asked=turn.state.asked.set(about, moved))


def _places(state: State, leaving: Collection[int]) -> list[int]:
    """Free places, one entry each, those that stay in rollout longest first.

    The standalone pool never leaves (its cells fill evenly); then the latest cells, which are lent last.
    """
    stay = [i for i in state.rollout if i not in leaving]
    pool = [i for i in stay if i >= state.plan.cells]
    levels = sorted(((free, i) for i in pool for free in range(1, state.cells[i].free + 1)), reverse=True)
    elastic = [i for i in sorted(stay, reverse=True) if i < state.plan.cells for _ in range(state.cells[i].free)]
    return [i for _, i in levels] + elastic
