"""The same run under elastic, colocate and the best async split, on real cells.

    python bench/elastic.py [--cells 2] [--steps 3] [--seed 0] [--executions 10] [--config examples/elastic.toml]
                            [--json] [--out FOLDER] [--emulated [--a 4]]

Same tasks, seeds, devices and staleness bound (look-ahead 1 for all: without it an async split has nothing to do at
the same time). Async is run for every split, with streaming off and on; the fastest is shown. `wall_s` counts from the
moment when all cells take calls. `cells`: seconds busy, idle and moving, as the scheduler's journal has them
(`observe/use.py`). What it cannot show on one machine: cells share its cores, so an idle cell makes the others faster
and a busy one slower. Read the mechanism here (moves, calls continued, idle time), not a speed-up.

With --emulated (8 cells of examples/emulated.toml) engines and trainers have no model and a modelled speed: cells do
not slow each other down, and wall times do compare. One split of async is run, first; `qwengyre replay` then predicts
the other two from it alone, and the errors are printed (stderr).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from qwengyre.cluster.journal import read, read_plan
from qwengyre.observe.use import cell_use
from qwengyre.schedule.events import CellReady

ROOT = Path(__file__).parents[1]
COMMAND = str(Path(sys.executable).with_name("qwengyre"))


def main() -> None:
    """Run, then print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cells", type=int)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--executions", type=int, help="that one cell takes at once")
    parser.add_argument("--config")
    parser.add_argument("--emulated", action="store_true", help="no model, at a modelled speed")
    parser.add_argument("--a", type=int, help="the one split of async; default half the cells when emulated, else all")
    parser.add_argument("--json", action="store_true", help="an array, one object a policy, and nothing else")
    parser.add_argument("--out", type=Path, help="keep the run folders there")
    options = parser.parse_args()
    usual = (8, 5, "examples/emulated.toml") if options.emulated else (2, 10, "examples/elastic.toml")
    options.cells, options.executions, options.config = (
        given or default
        for given, default in zip((options.cells, options.executions, options.config), usual, strict=True)
    )
    with tempfile.TemporaryDirectory() as passing:
        folder = options.out or Path(passing)
        shown = emulated(options, folder) if options.emulated else real(options, folder)
    print(json.dumps(shown, indent=1) if options.json else table(shown))


def real(options: argparse.Namespace, folder: Path) -> list[Any]:
    """All splits of async, of which the fastest is kept."""
    every = [options.a] if options.a else range(1, options.cells)
    splits = [("async", a, s) for a in every for s in (False, True)]
    runs = [run(options, folder, *settings) for settings in [("elastic",), ("colocate",), *splits]]
    split = min((r for r in runs if r["policy"] == "async"), key=lambda r: r["wall_s"], default=None)
    return [r for r in runs if r["policy"] != "async" or r is split]


def emulated(options: argparse.Namespace, folder: Path) -> list[Any]:
    """One split of async, what the simulator makes of it, and the others."""
    split = run(options, folder, "async", options.a or options.cells // 2, False)
    words = ["--policy", "elastic", "--policy", "colocate", "--json"]
    recorded = folder / f"async-{split['training']}-False"
    told = json.loads(
        subprocess.run([COMMAND, "replay", str(recorded), *words], check=True, capture_output=True).stdout
    )
    print(f"the async run, simulated again: {told['error']['hours']:+.1%} hours", file=sys.stderr)
    others = [run(options, folder, kind) for kind in ("elastic", "colocate")]
    for real_run, guess in zip(others, told["what_if"], strict=True):
        was, now = real_run["wall_s"], guess["hours"] * 3600
        print(f"{guess['policy']}: predicted {now:.1f} s, took {was:.1f} s: {now / was - 1:+.1%}", file=sys.stderr)
    return [*others, split]


def run(options: argparse.Namespace, folder: Path, kind: str, training: int = 1, streaming: Any = "auto") -> Any:
    """One run of the command, read from its folder."""
    run_dir = folder / f"{kind}-{training}-{streaming}"
    words = [
        f"run.steps={options.steps}", f"run.seed={options.seed}", f"cells.count={options.cells}", "rl.phi=1",
        f"cells.executions={options.executions}",
        f"policy.kind={kind}", f"policy.training={training}", f"policy.streaming={str(streaming).lower()}",
    ]  # fmt: skip
    print(f"running {' '.join(words)}", file=sys.stderr)
    command = [COMMAND, "train", options.config, *words]
    subprocess.run([*command, "--run-dir", str(run_dir)], cwd=ROOT, check=True, stdout=sys.stderr)
    return {"policy": kind, **({"training": training, "streaming": streaming} if kind == "async" else {})} | read_run(
        run_dir
    )


def read_run(run_dir: Path) -> dict[str, Any]:
    """What is compared."""
    events = [entry.event for entry in read(run_dir / "journal.jsonl")]
    ready = max(event.at for event in events if isinstance(event, CellReady))
    uses = cell_use(read_plan(run_dir / "journal.jsonl"), events)
    summary = json.loads((run_dir / "summary.json").read_text())
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return {
        "wall_s": round(events[-1].at - ready, 2),
        "cells": [{name: round(seconds, 2) for name, seconds in vars(use).items()} for use in uses],
        "score_mean": round(sum(summary["reward"]) / len(summary["reward"]), 4),
        "max_staleness": max(row["staleness/max"] for row in rows),
        "moves": summary["moves"]["moves"],
        "calls_continued": summary["moves"]["calls_continued"],
    }


def table(rows: list[dict[str, Any]]) -> str:
    """For people."""
    lines = [f"{'policy':22} {'wall s':>7} {'score':>6} {'stale':>5} {'moves':>5} {'continued':>9}  busy/idle/moving s"]
    for row in rows:
        name = row["policy"]
        if name == "async":
            name += f" {row['training']} train" + (", streaming" if row["streaming"] else "")
        cells = "  ".join(f"{c['busy']:.1f}/{c['idle']:.1f}/{c['moving']:.1f}" for c in row["cells"])
        lines.append(
            f"{name:22} {row['wall_s']:7.1f} {row['score_mean']:6.3f} {row['max_staleness']:5} {row['moves']:5} "
            f"{row['calls_continued']:9}  {cells}"
        )
    cores = os.cpu_count()
    lines.append(
        f"{cores} cores under all cells: idle time here frees no device, so wall times compare the mechanism only"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
