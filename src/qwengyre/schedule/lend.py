"""Cells between rollout and training: lend, take back, turn round. The training cells are a prefix of the live ones."""

from collections.abc import Callable, Mapping

from qwengyre.schedule.actions import Move
from qwengyre.schedule.admit import batch_ready, burst_complete, step_complete
from qwengyre.schedule.place import hand_over
from qwengyre.schedule.plan import When
from qwengyre.schedule.state import Phase, State
from qwengyre.schedule.turn import Turn
from qwengyre.types import Role


def lend(turn: Turn) -> None:
    """The next cell (core first, then in order) goes to train; one at a time unless in lockstep.

    Iff this burst has data nobody has claimed, no other cell is in transit, and `policy.when` allows it: for the
    paper's rule, w <= C_R - C_e.
    """
    state = turn.state
    if state.phase is not Phase.OPEN or not (_has_work(state) or state.plan.policy.least):
        return
    if _under_way(state) or not _core_is_live(state):
        return
    leaving = _next_cells(state)
    if not leaving or not _may_leave(state, leaving):
        return
    hand_over(turn, leaving)
    for cell in leaving:
        _move(turn, cell, Role.TRAINING)


def take_back(turn: Turn) -> None:
    """After a loss (or a smaller capacity) w > C_R is legal: the cells that joined last return at once.

    A cell that trains while one before it does not returns as well (a move that failed half-way). For an evaluation
    all return, but those that train for good.
    """
    state = turn.state
    if state.phase is Phase.EVALUATING:
        for cell in reversed(state.training):
            if cell >= state.plan.policy.least and state.cells[cell].role is Role.TRAINING:
                _move(turn, cell, Role.ROLLOUT)
    if state.phase not in (Phase.OPEN, Phase.CLOSING):
        return
    for cell in reversed(state.training):
        if cell < state.plan.policy.least or state.cells[cell].role is not Role.TRAINING:
            break  # one that is still on its way turns round when it arrives
        if not (_short(turn.state) and _may_return(turn.state, cell)) and _in_prefix(turn.state, cell):
            break
        _move(turn, cell, Role.ROLLOUT)


def end_burst(turn: Turn) -> None:
    """At a boundary all lent cells return, but the core stays iff the next batch is ready and the rest has room."""
    for cell in reversed(turn.state.training):
        state = turn.state
        stays = cell < state.plan.policy.least or (cell == 0 and _core_stays(state))
        if state.cells[cell].role is Role.TRAINING and not stays:
            _move(turn, cell, Role.ROLLOUT)


def join_waiting(turn: Turn) -> None:
    """A restarted cell joins rollout, unless a later cell trains (the prefix would break) or the core was lost."""
    state = turn.state
    for index in state.cells.formation.waiting:
        if not (index == 0 and state.core_lost) and not any(t > index for t in state.training):
            turn.put_cell(index, role=Role.ROLLOUT, waits=False)


def _move(turn: Turn, cell: int, role: Role) -> None:
    to = Role.TO_TRAINING if role is Role.TRAINING else Role.TO_ROLLOUT
    turn.put_cell(cell, role=to, waits=False)
    turn.ask(Move, f"move {cell}", cell=cell, role=role, incarnation=turn.state.cells[cell].incarnation)


def _under_way(state: State) -> bool:
    """Another transfer; in lockstep the others that go to train are the same one."""
    if state.plan.policy.lockstep:
        return bool(state.cells.formation.to_rollout)
    return bool(state.in_transit)


def _next_cells(state: State) -> list[int]:
    """Who is next: the first live cells that do not train. A waiting cell may go straight to training.

    Together only in lockstep, and for data: a trained step needs but the core, and cells that train for good queue up.
    """
    order = [i for i in state.cells.formation.next if i < state.plan.cells]
    training = len(state.training)
    left = state.plan.most_training - training
    if training < state.plan.policy.least or not (state.plan.policy.lockstep and state.pending):
        left = min(left, 1)
    return order[:left]


def _may_leave(state: State, leaving: list[int]) -> bool:
    if leaving[-1] < state.plan.policy.least:
        return True  # trains for good: it has no executions
    if not _has_work(state) or 0 < state.pending < state.plan.policy.gate * len(state.training):
        return False
    return _LEAVES[state.plan.policy.when](state, leaving)


def _room_without(state: State, leaving: list[int]) -> bool:
    """w(t) <= C_R(t) - C_e."""
    rollout = state.rollout
    losing = sum(state.cells[i].capacity for i in leaving if i in rollout)
    return state.waterlevel <= state.rollout_capacity - losing


def _enough_data(state: State) -> bool:
    """Groups whose data wait, as many as `policy.share` of a step's; or the step has no more to wait for."""
    waiting = state.pending / max(1, state.expected) * state.admitted
    return state.room == 0 or waiting >= state.plan.policy.share * state.plan.groups_per_step


_LEAVES: Mapping[When, Callable[[State, list[int]], bool]] = {
    When.ROOM: _room_without,
    When.ROOM_OR_BURST: lambda state, leaving: _room_without(state, leaving) or burst_complete(state),
    When.STEP: lambda state, _: step_complete(state),
    When.BURST: lambda state, _: burst_complete(state),
    When.DRAINED: lambda state, _: state.waterlevel == 0 and burst_complete(state),
    When.SHARE: lambda state, _: _enough_data(state),
}


def _has_work(state: State) -> bool:
    """Data of this burst that nobody has claimed; or a trained step, which only a core in training can close."""
    return state.pending > 0 or (state.trained and state.expected > 0 and 0 not in state.training)


def _core_is_live(state: State) -> bool:
    return state.cells[0].role is not Role.LOST or (state.cells[0].waits and not state.core_lost)


def _short(state: State) -> bool:
    """Must a cell return before the burst is over? By the waterlevel if w > C_R, cells on their way back counted; where
    executions are suspended in place, if data are missing that only rollout makes."""
    when = state.plan.policy.when
    if when is When.STEP:
        return not step_complete(state)
    if when in (When.BURST, When.DRAINED):
        return not (state.pending or state.claimed or burst_complete(state))
    if state.waterlevel <= state.rollout_capacity + state.cells.formation.coming:
        return False
    if when is When.SHARE:
        return not (state.pending or state.claimed or burst_complete(state))
    return when is When.ROOM or not burst_complete(state)


def _may_return(state: State, cell: int) -> bool:
    """A core that is about to close its step does that first."""
    if cell != 0:
        return True
    return state.phase is Phase.OPEN and (state.room > 0 or state.pending > 0)


def _in_prefix(state: State, cell: int) -> bool:
    formation = state.cells.formation
    return all(cells[0] > cell for cells in (formation.rollout, formation.to_rollout) if cells)


def _core_stays(state: State) -> bool:
    """w fits into the cells but the core, those on their way back included (what is to be dispatched is in w)."""
    if state.plan.policy.when not in (When.ROOM, When.ROOM_OR_BURST, When.SHARE) or not batch_ready(state):
        return False
    formation = state.cells.formation
    rest = sum(state.cells[i].capacity for i in formation.rollout + formation.to_rollout if i)
    return state.waterlevel <= rest
