"""Cost of a scheduler event, in microseconds: `python bench/schedule.py`. Needs no GPU and no Ray."""

import time
from collections import defaultdict

import numpy as np

from qwengyre.schedule.state import Plan
from qwengyre.schedule.step import start, step
from qwengyre.sim.run import simulate
from qwengyre.sim.workload import Failures, Workload


def main() -> None:
    """Runs of 10,240 executions, 16 cells; then the same events again through `step` alone."""
    print(f"{'policy':<10}{'executions':>11}{'events':>8}{'us/event':>10}{'median':>8}{'worst':>10}  worst event")
    for kind, training in (("elastic", 1), ("async", 6), ("colocate", 1)):
        plan = Plan.for_policy(
            kind, training=training, cells=16, groups_per_step=128, group_size=8, steps=10, capacity=128, phi=1, slack=1
        )
        _, record = simulate(plan, Workload(failures=Failures(dropped=0.02, cell_life_h=55.0)), 0)
        state, spent = start(plan), defaultdict[str, list[float]](list)
        for event, _ in record.entries:
            began = time.process_time()
            state, _ = step(state, event)
            spent[event.type].append((time.process_time() - began) * 1e6)
        every = np.concatenate([np.array(times) for times in spent.values()])
        worst = max(spent, key=lambda name: max(spent[name]))
        print(
            f"{kind:<10}{state.dispatched:>11}{len(every):>8}{every.mean():>10.1f}{np.median(every):>8.1f}"
            f"{every.max():>10.0f}  {worst}"
        )


if __name__ == "__main__":
    main()
