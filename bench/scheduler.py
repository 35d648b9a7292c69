"""Cost of a scheduler event: `python bench/scheduler.py [--cells 64] [--executions 10240]`. Needs no GPU and no Ray.

A simulated run is recorded for each policy; then `step` alone is given its events again. Time of this process only.
"""

import argparse
import time
from collections import defaultdict

import numpy as np

from qwengyre.schedule.plan import Plan
from qwengyre.schedule.step import start, step
from qwengyre.sim.run import simulate
from qwengyre.sim.workload import Failures, Train, Workload

STEPS = 4


def main() -> None:
    """A table: mean, median, 99th percentile and worst event of each policy."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cells", type=int, default=64)
    parser.add_argument("--executions", type=int, default=10_240, help="live at once")
    options = parser.parse_args()
    groups = max(1, options.executions // 16)  # of 8, one step of look-ahead
    capacity = -(-groups * 16 // options.cells)
    work = Workload(
        failures=Failures(dropped=0.02, cell_life_h=500.0),
        train=Train(tokens_per_h_per_cell=1e6 * groups / options.cells),
    )
    print(f"{options.cells} cells of {capacity} places")
    heads = f"{'policy':<10}{'executions':>11}{'events':>8}{'us/event':>10}"
    print(f"{heads}{'median':>8}{'99%':>8}{'worst':>10}  worst event")
    for kind, training in (("elastic", 1), ("async", options.cells * 3 // 8), ("colocate", 1)):
        plan = Plan.for_policy(
            kind, training=training, cells=options.cells, groups_per_step=groups, group_size=8, steps=STEPS,
            capacity=capacity, phi=1, slack=1,
        )  # fmt: skip
        state, spent = start(plan), defaultdict[str, list[float]](list)
        for event, _ in simulate(plan, work)[1].entries:
            began = time.process_time_ns()
            state, _ = step(state, event)
            spent[event.type].append((time.process_time_ns() - began) / 1e3)
        every = np.concatenate([np.array(times) for times in spent.values()])
        worst = max(spent, key=lambda name: max(spent[name]))
        print(
            f"{kind:<10}{state.dispatched:>11}{len(every):>8}{every.mean():>10.1f}{np.median(every):>8.1f}"
            f"{np.percentile(every, 99):>8.0f}{every.max():>10.0f}  {worst}"
        )


if __name__ == "__main__":
    main()
