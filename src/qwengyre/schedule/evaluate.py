"""Evaluations: executions of published weights that are never trained, at the boundary of a burst.

While one runs, all cells roll out (but those that always train), nothing is dispatched, and no step is open: every
execution of it is of exactly one set of weights. The phase EVALUATING ends with its last settlement.
"""

from qwengyre.schedule.actions import Evaluate, Evaluated
from qwengyre.schedule.state import Evaluation, Phase
from qwengyre.schedule.turn import Turn
from qwengyre.types import Ending, ExecutionId

MOST_AGAIN = 3
"""So often a slot of an evaluation runs again whose execution was lost."""


def begin_evaluation(turn: Turn) -> bool:
    """Does this boundary wait for an evaluation: one that is due, or that goes on after a roll-back to it?"""
    state = turn.state
    if state.evaluation is None and state.plan.evaluations.due(state.step, state.plan.steps, state.evaluated):
        count = state.plan.evaluations.count
        evaluation = Evaluation(state.next_evaluation, state.step, count, unsettled=count)
        turn.put(evaluation=evaluation, next_evaluation=evaluation.number + 1, evaluated=state.step)
        turn.ask(Evaluate, evaluation=evaluation.number, count=count, step=state.step, version=state.version)
    if turn.state.evaluation is None:
        return False
    turn.put(phase=Phase.EVALUATING)
    return True


def evaluation_over(turn: Turn) -> bool:
    """Is the last execution of the evaluation settled? Then it leaves the state."""
    state, evaluation = turn.state, turn.state.evaluation
    if state.phase is not Phase.EVALUATING or evaluation is None or evaluation.unsettled:
        return False
    turn.ask(Evaluated, evaluation=evaluation.number, step=evaluation.step)
    turn.put(evaluation=None)
    return True


def visitor_ended(turn: Turn, execution: ExecutionId, ending: Ending) -> None:
    """An execution of an evaluation frees its place. One that was lost runs again, `MOST_AGAIN` times at most: what
    lost it says nothing of the weights."""
    turn.put(visitors=turn.state.visitors - 1)
    evaluation = turn.state.evaluation
    if evaluation is None or evaluation.number != execution.evaluation:
        return
    if ending is Ending.LOST and execution.member < MOST_AGAIN * evaluation.count:
        again = (*evaluation.again, execution.member + evaluation.count)
        turn.put(evaluation=evaluation.but(again=again, unsettled=evaluation.unsettled + 1))


def visitor_settled(turn: Turn, execution: ExecutionId) -> None:
    """One that a roll-back gave up counts nowhere."""
    evaluation = turn.state.evaluation
    if evaluation is not None and evaluation.number == execution.evaluation:
        turn.put(evaluation=evaluation.but(unsettled=evaluation.unsettled - 1))


def give_up(turn: Turn, step: int) -> None:
    """The run goes back to `step`. An evaluation of these very weights goes on; one of weights that are gone does not:
    what is queued of it never begins. Later weights are evaluated again when they exist again."""
    evaluation = turn.state.evaluation
    if evaluation is not None and evaluation.step != step:
        turn.put(evaluation=None)
    turn.put(evaluated=min(turn.state.evaluated, step))
