"""Policies over the shipped workloads and several seeds, beside the ranges of the paper: `python bench/policies.py`.

    python bench/policies.py [--workload NAME]... [--seeds 5] [--json FILE] [key=value]...

Every comparison is at the same maximum staleness. The splits of async, and the standalone part of lockstep policies,
are the best ones: all are tried with the first seed, and those next to the best with every other.
Simulated hours only: what the model leaves out, no row here can show.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from qwengyre.config import overlaid, resolve
from qwengyre.sim import workload as shipped
from qwengyre.sim.compare import Question
from qwengyre.sim.run import Result
from qwengyre.sim.workload import Workload

PAPER = {
    "flagship_2p4t": {"async": "1.78", "colocate": "1.21"},
    "nl2repo_122b": {"async": "1.42-1.53", "colocate": "1.36-1.47"},
    "swe_terminal": {"async": "1.38-1.57", "colocate": "1.61-1.85"},
}
EVERY_STEP = ["rl.mu=1", "rl.phi=3"]
"""Publishing every step, at the maximum staleness of mu 4, phi 0."""


@dataclass(frozen=True)
class Way:
    """One row: a policy at some keys; `split` = what is searched, `a` or standalone cells of the same total."""

    label: str
    policy: str
    keys: list[str] = field(default_factory=list[str])
    split: str = ""


WAYS = [
    Way("elastic", "elastic"),
    Way("gyre", "gyre"),
    Way("colocate", "colocate"),
    Way("colocate-step", "colocate-step"),
    Way("colocate-drain", "colocate-drain"),
    Way("async", "async", split="a"),
    Way("async-streaming", "async-streaming", split="a"),
    Way("async-streaming, a publish every step", "async-streaming", EVERY_STEP, "a"),
    Way("colocate-streaming", "colocate-streaming", split="standalone"),
    Way("at-once", "at-once", split="standalone"),
    Way("elastic, a publish every step", "elastic", EVERY_STEP),
    Way("elastic, mu 3 phi 1", "elastic", ["rl.mu=3", "rl.phi=1"]),
    Way("gyre, a publish every step", "gyre", EVERY_STEP),
    Way("gyre, mu 3 phi 1", "gyre", ["rl.mu=3", "rl.phi=1"]),
    Way("elastic, half the cells of twice the size", "elastic", ["half"]),
]


def question(name: str, keys: Iterable[str], seed: int, standalone: int = 0) -> Question:
    """A workload at some keys."""
    values = overlaid(shipped.read(name), [key for key in keys if key != "half"])
    cells, slots = values["cluster"]["cells"], values["cluster"]["slots_per_cell"]
    rate = values["train"]["tokens_per_h_per_cell"]
    if "half" in keys:
        half = [
            f"cluster.cells={cells // 2}",
            f"cluster.slots_per_cell={slots * 2}",
            f"rate.alpha={values['rate']['alpha'] / 2}",
        ]
        values = overlaid(values, [*half, f"train.tokens_per_h_per_cell={rate * 2}"])
    if standalone:
        values = overlaid(values, [f"cluster.cells={cells - standalone}", f"cluster.standalone={standalone}"])
    return Question(resolve(values, Workload), seed)


def run(name: str, way: Way, keys: list[str], seed: int, split: int) -> Result:
    """One simulated run."""
    standalone = split if way.split == "standalone" else 0
    return question(name, [*keys, *way.keys], seed, standalone).run(way.policy, max(1, split))


def best(name: str, way: Way, keys: list[str], seeds: int) -> tuple[int, list[Result]]:
    """(the best split, the fastest result of each seed)."""
    if not way.split:
        return 0, [run(name, way, keys, seed, 0) for seed in range(seeds)]
    cells = question(name, keys, 0).workload.cluster.cells
    splits = range(1, cells) if way.split == "a" else range(cells // 2 + 1)
    first = {split: run(name, way, keys, 0, split) for split in splits}
    split = min(first, key=lambda s: first[s].hours)
    near = [s for s in (split - 1, split, split + 1) if s in first]
    rest = [min((run(name, way, keys, seed, s) for s in near), key=lambda r: r.hours) for seed in range(1, seeds)]
    return split, [first[split], *rest]


def main() -> None:
    """A table a workload."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--workload", action="append")
    parser.add_argument("--way", action="append", help="only rows whose label begins so; elastic is always there")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("keys", nargs="*")
    options = parser.parse_args()
    whole: dict[str, dict[str, list[dict[str, object]]]] = {}
    for name in options.workload or shipped.shipped():
        ways = [w for w in WAYS if w.label == "elastic" or not options.way or w.label.startswith(tuple(options.way))]
        print(f"\n{name} {' '.join(options.keys)}, {options.seeds} seeds: mean (least to most)")
        heads = f"{'':<44}{'hours':>8}  {'over elastic':<22}{'paper':>10}{'x bound':>9}"
        print(f"{heads}{'timed out':>11}{'tokens':>8}{'stale':>7}{'max':>5}")
        elastic: list[Result] = []
        for way in ways:
            split, results = best(name, way, options.keys, options.seeds)
            elastic = elastic or results
            whole.setdefault(name, {})[way.label] = [result.plain() for result in results]
            show(way, split, results, elastic, PAPER.get(name, {}).get(way.label, ""))
            sys.stdout.flush()
    if options.json:
        options.json.write_text(json.dumps(whole, indent=1))


def show(way: Way, split: int, results: list[Result], elastic: list[Result], paper: str) -> None:
    """One row."""
    ratios = [r.hours / e.hours for r, e in zip(results, elastic, strict=True)]
    mean = {
        name: statistics.mean(getattr(r, name) for r in results) for name in ("hours", "timed_out", "mean_staleness")
    }
    tokens = statistics.mean(r.tokens / e.tokens for r, e in zip(results, elastic, strict=True))
    bound = statistics.mean(r.hours / r.lower_bound_hours for r in results)
    assert all(r.hours >= r.lower_bound_hours for r in results), "faster than the lower bound"
    label = way.label + (f", {way.split} {split}" if way.split else "")
    over = f"{statistics.mean(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
    print(
        f"{label:<44}{mean['hours']:>8.2f}  {over:<22}"
        f"{paper:>10}{bound:>9.3f}{mean['timed_out']:>11.1%}{tokens:>8.3f}{mean['mean_staleness']:>7.2f}"
        f"{max(r.max_staleness for r in results):>5}"
    )


if __name__ == "__main__":
    main()
