"""Who waits for what, since when, in plain sentences: for the watchdog and `inspect`. Pure, and only for people.

People count steps from 1, as every view does; groups and executions keep their names, which begin at 0.
"""

from qwengyre.schedule.plan import When
from qwengyre.schedule.state import Asked, Life, Phase, Stage, State
from qwengyre.types import Role

_FEW = 4


def waiting(state: State) -> list[str]:
    """Sentences, the nearest cause of no progress first. Empty when the run is done."""
    if state.phase is Phase.DONE:
        return []
    if state.phase is Phase.BEFORE:
        return ["the run waits for its first event, Started"]
    return [*_cells(state), *_burst(state), *_groups(state), *_executions(state)]


def _since(state: State, at: float) -> str:
    return f"for {state.at - at:.0f} s"


def _asked(state: State, about: str) -> str:
    entry: Asked | None = state.asked.get(about)
    return _since(state, entry.at) if entry else "from now on"


def _cells(state: State) -> list[str]:
    lines: list[str] = []
    if state.core_lost:
        lines.append("cell 0, the core, is lost: training waits for the roll-back to the newest checkpoint")
    for i, cell in enumerate(state.cells):
        if cell.role in (Role.TO_TRAINING, Role.TO_ROLLOUT):
            goal = "training" if cell.role is Role.TO_TRAINING else "rollout"
            lines.append(f"cell {i} is on its way to {goal} {_asked(state, f'move {i}')}")
        elif cell.waits:
            lines.append(f"cell {i} restarted and waits: {_why_it_waits(state, i)}")
        elif cell.role is Role.LOST:
            lines.append(f"cell {i} is lost and has not come back")
    return lines


def _why_it_waits(state: State, cell: int) -> str:
    if cell == 0 and state.core_lost:
        return "it joins after the roll-back"
    later = [t for t in state.training if t > cell]
    return f"cell {later[-1]} behind it trains" if later else "it joins with the next event"


def _burst(state: State) -> list[str]:
    name = f"step {state.step + 1}"
    if (evaluation := state.evaluation) is not None:
        return [f"{name} waits for an evaluation, of which {evaluation.unsettled} executions are not settled"]
    if state.phase is Phase.CLOSING:
        return [f"{name} waits for the optimizer of cell 0 {_asked(state, 'close')}"]
    if state.phase is Phase.PUBLISHING:
        return [f"the next burst waits for version {state.next_version - 1} to be published {_asked(state, 'publish')}"]
    if state.phase is Phase.ENDING:
        return [f"the publish after step {state.step} waits for cells {list(state.in_transit)} in transit"]
    lines: list[str] = []
    if state.room:
        lines.append(f"{name} has {state.admitted} groups and waits for {state.room} more")
    if left := state.expected - state.counted:
        lines.append(f"{name} has {left} micro-steps to train: {state.pending} unclaimed, {state.claimed} claimed")
    if state.pending and not state.training and not state.in_transit:
        lines.append(_why_not_lent(state))
    return lines


def _why_not_lent(state: State) -> str:
    if state.plan.policy.when is When.SHARE:
        return f"no cell trains: data of fewer groups wait than {state.plan.policy.share:.0%} of a step"
    if state.plan.policy.when is not When.ROOM:
        return f"no cell trains: the data of the burst up to step {state.burst_end} are not complete"
    return (
        f"no cell trains: {state.waterlevel} executions are unfinished, the places of all rollout cells are "
        f"{state.rollout_capacity}, and a cell is lent only when the rest has room for them"
    )


def _groups(state: State) -> list[str]:
    size, lines = state.plan.group_size, list[str]()
    live = [g for g in sorted(state.groups) if state.groups[g].stage in (Stage.ROLLING, Stage.WEIGHING)]
    for g in live[:_FEW]:
        group = state.groups[g]
        if group.stage is Stage.WEIGHING:
            lines.append(f"group {g} waits to be weighed {_asked(state, f'weigh {g}')}")
        else:
            lines.append(f"group {g} waits for {size - group.settled} of {size} executions to settle")
    if len(live) > _FEW:
        lines.append(f"and {len(live) - _FEW} later groups")
    if state.ready:
        lines.append(f"{len(state.ready)} ready groups wait for a step")
    return lines


def _executions(state: State) -> list[str]:
    lines: list[str] = []
    oldest = sorted(state.executions.items(), key=lambda item: (item[1].since, item[0]))
    for name, execution in oldest[:_FEW]:
        what = {Life.PLACING: "is being started", Life.RUNNING: "runs", Life.ENDED: "ended and is not settled"}
        home = "" if execution.life is Life.ENDED else _home(state, execution.home)
        lines.append(f"execution {name} {what[execution.life]}{home} {_since(state, execution.since)}")
    if state.homeless:
        lines.append(f"{len(state.homeless)} executions lost their cell and wait for a place")
    if state.queued:
        lines.append(f"{state.queued} executions wait in the queue for a place")
    return lines


def _home(state: State, home: int) -> str:
    if home < 0:
        return " without a cell"
    suspended = "" if state.cells[home].role is Role.ROLLOUT else " (suspended)"
    return f" at cell {home}{suspended}"
