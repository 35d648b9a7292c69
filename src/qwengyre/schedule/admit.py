"""Which finished groups enter a step: in finish order, each only if every older deadline stays feasible.

Groups with the same v_d are a cohort: they share a deadline, v_d + phi + mu - 1 + slack, and an older cohort's is
earlier. The earliest-deadline-first test below counts cohorts, never groups.
"""

from collections.abc import Mapping

from qwengyre.schedule.actions import Admit
from qwengyre.schedule.state import Plan, Stage, State
from qwengyre.schedule.turn import Turn


def admit(turn: Turn) -> None:
    """Fill the open step. Without streaming, only when all its groups are there."""
    state = turn.state
    if not state.ready or not (room := state.room) or (len(state.ready) < room and not state.plan.policy.streaming):
        return
    chosen = _choose(state, dict(state.cohorts), list(state.ready), state.step, state.slots)
    if state.plan.policy.streaming or len(chosen) == room:
        for group in chosen:
            _enter(turn, group)


def burst_complete(state: State) -> bool:
    """Do the ready groups fill every step that is left of this burst?"""
    if len(state.ready) < _rooms(state):
        return False
    if len(state.ready) == state.outstanding:
        return True
    cohorts, ready = dict(state.cohorts), list(state.ready)
    for step in range(state.step, state.burst_end):
        slots = state.slots if step == state.step else state.plan.groups_per_step
        room = min(slots, sum(count for born, count in cohorts.items() if born <= step))
        if len(_choose(state, cohorts, ready, step, slots)) < room:
            return False
    return True


def step_complete(state: State) -> bool:
    """Do the ready groups fill the open step, or is it full?"""
    return state.room == 0 or batch_ready(state)


def _rooms(state: State) -> int:
    """Groups that the rest of the burst takes at least."""
    return min(state.slots + (state.burst_end - state.step - 1) * state.plan.groups_per_step, state.released)


def batch_ready(state: State) -> bool:
    """Is the next batch ready: do the ready groups fill the open step, which has some?"""
    room = state.room
    return (
        0 < room <= len(state.ready)
        and len(_choose(state, dict(state.cohorts), list(state.ready), state.step, state.slots)) == room
    )


def _choose(state: State, cohorts: dict[int, int], ready: list[int], step: int, slots: int) -> list[int]:
    """The groups of `ready` that may enter `step`, which takes `slots`; they leave `cohorts` and `ready`.

    A group may enter iff its cohort is not younger than the first one without spare places: then older cohorts still
    fit into what is left by their deadlines. A group whose weights are newer than the step (after a roll-back) waits
    for the step that has them.
    """
    borns = sorted(born for born in cohorts if born <= step)
    spare = dict(zip(borns, _spare(state.plan, cohorts, borns, step, slots), strict=True))
    youngest = next((born for born in borns if spare[born] < 0), borns[-1] if borns else -1)
    chosen, rest = list[int](), list[int]()
    for at, group in enumerate(ready):
        if len(chosen) == slots:
            rest += ready[at:]
            break
        entered = state.groups[group].born
        if entered > youngest:  # for good: places only get fewer
            rest.append(group)
            continue
        chosen.append(group)
        cohorts[entered] -= 1
        for born in borns:
            if born >= entered:
                break
            spare[born] -= 1
            if spare[born] < 0:
                youngest = min(youngest, born)
    ready[:] = rest
    return chosen


def _spare(plan: Plan, cohorts: Mapping[int, int], borns: list[int], step: int, slots: int) -> list[int]:
    """For each cohort: places until its deadline beyond what it and all older ones need, if `step` takes one more group
    of a younger cohort. Places: slots - 1 in this step, B in each later one."""
    spare, older = list[int](), 0
    for born in borns:
        older += cohorts[born]
        spare.append(slots - 1 + plan.groups_per_step * (plan.deadline(born) - step) - older)
    return spare


def _enter(turn: Turn, group: int) -> None:
    state = turn.state
    entry = state.groups[group]
    admitted = entry.but(stage=Stage.ADMITTED, step=state.step)
    assert 0 <= state.step - entry.born <= state.plan.max_staleness, (
        f"group {group}: v_d {entry.born}, step {state.step}"
    )
    turn.put(
        groups=state.groups.set(group, admitted),
        ready=tuple(g for g in state.ready if g != group),
        admitted=state.admitted + 1,
        expected=state.expected + entry.micro_steps,
    )
    turn.leave_cohort(entry.born)
    turn.ask(Admit, f"admit {group}", group=group, step=state.step)
