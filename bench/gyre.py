"""`gyre` against the paper's rule at equal maximum staleness, setting by setting: `python bench/gyre.py [--seeds 5]`.

Hours of `gyre` over those of `elastic`: mean (least to most) of the seeds; how much larger the share of time-outs is;
moves an execution before and after. Then, what one step of look-ahead gives each of them. A minute of two cores.
"""

import argparse
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

from policies import question

from qwengyre.sim import workload as shipped
from qwengyre.sim.run import Result

STALENESS = ((4, 0, 0), (4, 1, 0), (3, 1, 0), (2, 1, 0), (1, 1, 1), (1, 3, 0))
"""mu, phi, slack."""
CELLS = (8, 16)
STEPS = 8


@dataclass(frozen=True)
class Setting:
    """One row."""

    workload: str
    cells: int
    mu: int
    phi: int
    slack: int

    def run(self, policy: str, seed: int) -> Result:
        """Simulated."""
        keys = [f"rl.mu={self.mu}", f"rl.phi={self.phi}", f"rl.stale_slack={self.slack}"]
        return question(
            self.workload, [*keys, f"cluster.cells={self.cells}", f"rl.steps={STEPS}"], seed
        ).run(policy, 1)  # fmt: skip

    def both(self, seed: int) -> tuple[Result, Result]:
        """elastic, gyre."""
        return self.run("elastic", seed), self.run("gyre", seed)


def spread(ratios: Sequence[float]) -> str:
    """Mean, least and most."""
    return f"{statistics.mean(ratios):.4f} ({min(ratios):.4f} to {max(ratios):.4f})"


def main() -> None:
    """Two tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    seeds = range(parser.parse_args().seeds)
    settings = [Setting(name, cells, *s) for name in shipped.shipped() for cells in CELLS for s in STALENESS]
    found: dict[Setting, list[tuple[Result, Result]]] = {}
    print(f"{'workload':<14}{'cells':>6}  mu,phi,slack  {'gyre over elastic':<28}{'time-outs':>10}  moves an execution")
    with ProcessPoolExecutor() as pool:
        for s in settings:
            found[s] = list(pool.map(partial(Setting.both, s), seeds))
            ratios = [gyre.hours / elastic.hours for elastic, gyre in found[s]]
            more = max(gyre.timed_out - elastic.timed_out for elastic, gyre in found[s])
            moves = [statistics.mean(pair[i].moves_per_execution for pair in found[s]) for i in (0, 1)]
            of = f"{s.workload:<14}{s.cells:>6}  {f'{s.mu},{s.phi},{s.slack}':<14}"
            print(f"{of}{spread(ratios):<28}{more:>+10.1%}  {moves[0]:.2f} {moves[1]:.2f}", flush=True)
    print("\nhours with phi 1 over those with phi 0, mu 4 (the greatest staleness is 4 instead of 3)")
    for s in settings:
        if (s.mu, s.phi) == (4, 0):
            ahead = found[Setting(s.workload, s.cells, 4, 1, 0)]
            for i, policy in enumerate(("elastic", "gyre")):
                ratios = [more[i].hours / less[i].hours for more, less in zip(ahead, found[s], strict=True)]
                print(f"{s.workload:<14}{s.cells:>6}  {policy:<14}{spread(ratios)}")


if __name__ == "__main__":
    main()
