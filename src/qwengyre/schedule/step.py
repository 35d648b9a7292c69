"""The scheduler: `step(state, event) -> (state, actions)`. Observe the event, then apply the rules of a burst in order.

    observe    the event becomes part of the state; at a boundary new groups are dispatched and lent cells return
    evaluate   an evaluation whose executions are all settled ends, and its boundary goes on
    join       a restarted cell takes executions again
    place      homeless executions first, then suspended ones, then the queue
    admit      finished groups enter the open step
    close      the optimizer, when a full step is trained
    publish    new weights, when the burst is over and no cell is in transit
    take back  a training cell returns when executions are short of places, or for an evaluation
    lend       the next cell goes to train

Pure: the same state and event give the same answer, here, in a replay and in the simulator.
"""

from qwengyre.schedule.actions import Action
from qwengyre.schedule.admit import admit
from qwengyre.schedule.burst import close_step, end_evaluation, publish
from qwengyre.schedule.events import Event
from qwengyre.schedule.lend import join_waiting, lend, take_back
from qwengyre.schedule.observe import observe
from qwengyre.schedule.place import place_homeless, place_queued, place_suspended
from qwengyre.schedule.state import Cell, Cells, Life, Phase, Plan, State
from qwengyre.schedule.turn import Turn
from qwengyre.types import ExecutionId, Role


def start(plan: Plan) -> State:
    """The state before the first event, which is Started."""
    return State(plan, Cells(Cell(Role.ROLLOUT, plan.capacity) for _ in range(plan.num_cells)))


def step(state: State, event: Event) -> tuple[State, tuple[Action, ...]]:
    """The next state, and what the world is asked to begin. Raises ValueError for an event that cannot be."""
    turn = Turn(state)
    observe(turn, event)
    end_evaluation(turn)
    if turn.state.phase not in (Phase.BEFORE, Phase.DONE):
        _decide(turn)
    return turn.state, tuple(turn.actions)


def _decide(turn: Turn) -> None:
    join_waiting(turn)
    place_homeless(turn)
    place_suspended(turn)
    place_queued(turn)
    if turn.state.phase is Phase.OPEN:
        admit(turn)
    close_step(turn)
    publish(turn)
    take_back(turn)
    lend(turn)


def asked(state: State) -> tuple[Action, ...]:
    """Everything asked and not answered, oldest first: what a world that starts anew must begin.

    OpenStep and Admit count as answered when their step is closed. A Place names the newest home of its execution.
    """
    actions = [entry.action for entry in state.asked.values()]
    return tuple(sorted(actions, key=lambda action: int(action.id.rpartition("-")[2])))


def open_executions(state: State) -> tuple[tuple[ExecutionId, ...], tuple[ExecutionId, ...]]:
    """(asked to be placed and not ended, ended and not settled), in order. Queued ones have not begun: not here."""
    alive = sorted(e for e, execution in state.executions.items() if execution.life is not Life.ENDED)
    ended = sorted(e for e, execution in state.executions.items() if execution.life is Life.ENDED)
    return tuple(alive), tuple(ended)
