"""The order of a burst: boundary (evaluate, dispatch) -> mu times (open, close) -> publish -> the next boundary."""

from qwengyre.schedule.actions import CloseStep, Dispatch, OpenStep, Publish
from qwengyre.schedule.evaluate import begin_evaluation, evaluation_over
from qwengyre.schedule.lend import end_burst
from qwengyre.schedule.state import Group, Phase, State
from qwengyre.schedule.turn import Turn
from qwengyre.types import Role


def boundary(turn: Turn) -> None:
    """The published weights contain `step` steps. They are evaluated, where that is due, before anything else."""
    turn.put(burst=turn.state.step)
    if not begin_evaluation(turn):
        _begin_burst(turn)


def end_evaluation(turn: Turn) -> None:
    """The boundary goes on when the last execution of its evaluation is settled."""
    if evaluation_over(turn):
        _begin_burst(turn)


def _begin_burst(turn: Turn) -> None:
    """The only moment that dispatches; after the last step, the end of the run."""
    if turn.state.step == turn.state.plan.steps:
        turn.put(phase=Phase.DONE)
        return
    _dispatch(turn)
    open_step(turn)
    end_burst(turn)


def open_step(turn: Turn) -> None:
    """Begin the step that comes next."""
    turn.put(phase=Phase.OPEN, admitted=0, expected=0, pending=0, claimed=0, counted=0)
    turn.ask(OpenStep, "open", step=turn.state.step)


def close_step(turn: Turn) -> None:
    """A full step whose micro-steps are all counted closes; one without micro-steps too (the world skips the rest)."""
    state = turn.state
    if state.phase is Phase.OPEN and state.trained and core_can_close(state):
        turn.put(phase=Phase.CLOSING)
        turn.ask(CloseStep, "close", step=state.step)


def publish(turn: Turn) -> None:
    """After the burst's last step, when no cell is between two roles: a late one would miss the new weights."""
    state = turn.state
    if state.phase is Phase.ENDING and not state.in_transit and state.cells[0].role is not Role.LOST:
        turn.put(phase=Phase.PUBLISHING, next_version=state.next_version + 1)
        turn.ask(Publish, "publish", version=state.next_version, step=state.step)


def core_can_close(state: State) -> bool:
    """The core applies the optimizer in training; a step without micro-steps needs none."""
    role = state.cells[0].role
    return role is Role.TRAINING or (state.expected == 0 and role is not Role.LOST)


def _dispatch(turn: Turn) -> None:
    """Up to Qb groups ahead, but never more than the steps of the run still take. Replaces void groups, too."""
    state, plan = turn.state, turn.state.plan
    wanted = min(plan.depth, (plan.steps - state.step) * plan.groups_per_step)
    count = wanted - state.outstanding
    if count <= 0:
        return
    first, born = state.next_group, state.step  # v_d
    with state.groups.mutate() as groups:
        for group in range(first, first + count):
            groups[group] = Group(born)
        turn.put(groups=groups.finish())
    cohorts = state.cohorts.set(born, state.cohorts.get(born, 0) + count)
    turn.put(next_group=first + count, cohorts=cohorts)
    turn.ask(Dispatch, first=first, count=count, version=state.version)
