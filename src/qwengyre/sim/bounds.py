"""The least time that any policy needs for these executions (docs/simulator.md): clairvoyant, and never above a result.

work   everything, spread over all cells without a gap
chain  a group is trained at most D steps after its dispatch, so its length follows from boundary to boundary
burst  without look-ahead, what cannot have been done tau seconds after the boundary comes after them
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qwengyre.schedule.state import Plan
from qwengyre.sim.executions import GroupDraw, Source
from qwengyre.sim.rates import Rates
from qwengyre.sim.workload import HOUR, Workload

Seconds = NDArray[np.float64]


@dataclass(frozen=True)
class Least:
    """What each group takes at least. Arrays over groups [G]; `progress` [G, N], unloaded seconds."""

    progress: Seconds
    longest: Seconds
    """Its slowest execution alone on a cell."""
    training: Seconds
    """Cell-seconds."""


def lower_bound(plan: Plan, workload: Workload, source: Source) -> float:
    """Seconds."""
    rates = Rates(workload.rate)
    speed = rates.throughput(plan.capacity)
    groups = [source.group(g) for g in range(plan.steps * plan.groups_per_step)]
    least = _least(plan, workload, groups, rates)
    work = float(least.progress.sum() / speed + least.training.sum()) / plan.num_cells
    return max(work, _chain(plan, workload, least, speed))


def _least(plan: Plan, workload: Workload, groups: list[GroupDraw], rates: Rates) -> Least:
    timeout = workload.exec.timeout_h * HOUR
    work = np.array([[draw.work_s for draw in group.executions] for group in groups])
    pace = np.array([[draw.tokens_per_s * (not draw.dropped) for draw in group.executions] for group in groups])
    slowest = rates[plan.capacity] if workload.exec.timeout_clock == "active" else 0.0
    progress = np.minimum(work, slowest * timeout)
    dropped = np.array([sum(draw.dropped for draw in group.executions) for group in groups])
    trained = (dropped <= plan.group_size - 2) & ~np.array([group.weightless for group in groups])
    tokens = (progress * pace).sum(axis=1) * trained
    training = tokens / workload.train.tokens_per_h_per_cell * HOUR
    return Least(progress, np.minimum(work, timeout).max(axis=1), training)


def _chain(plan: Plan, workload: Workload, least: Least, speed: float) -> float:
    """Bursts end one after another, each not before the groups that must be in it can be."""
    slack = plan.max_staleness // plan.mu
    bursts = range(0, plan.steps, plan.mu)
    ends = [0.0]  # ends[b + 1] = the end of burst b, its publish included
    for burst, first in enumerate(bursts):
        steps = min(plan.mu, plan.steps - first)
        closing = workload.train.opt_s + workload.cost.publish_s
        begun = ends[burst]
        end = begun + (steps - 1) * workload.train.opt_s + closing
        if burst >= slack:
            mine = _dispatched(plan, burst - slack)
            alone = least.longest[mine] + least.training[mine] / plan.cells
            end = max(end, ends[burst - slack] + float(alone.max(initial=0.0)) + closing)
        if slack == 0:
            end = max(end, begun + _burst(plan, least, _dispatched(plan, burst), speed) + closing)
        ends.append(end)
    return ends[-1]


def _dispatched(plan: Plan, burst: int) -> slice:
    """The groups that go out at the start of a burst."""
    size = plan.groups_per_step
    first = 0 if burst == 0 else plan.phi + burst * plan.mu
    return slice(first * size, (plan.phi + (burst + 1) * plan.mu) * size)


def _burst(plan: Plan, least: Least, mine: slice, speed: float) -> float:
    longest, training, progress = least.longest[mine], least.training[mine], least.progress[mine]
    best = 0.0
    for tau in (0.0, *np.unique(longest).tolist()):
        left = training[longest > tau].sum() + np.maximum(progress - tau, 0.0).sum() / speed
        best = max(best, tau + float(left) / plan.num_cells)
    return best
