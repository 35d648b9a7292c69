"""Does the demo learn? Whole runs of the command, held-out scores before and after, and a control that cannot learn.

    python bench/learning.py [--seeds 21 22 23] [--config examples/demo.toml] [--out runs/learning] [--no-control]
                             [--json FILE] [section.key=value]...

One run a seed, then the control: the first seed with learning rate 0. A finished run in --out is read, not run again; a
run that failed stays, and is told. Intervals are 95%, over held-out tasks, paired. `seconds` is the wall time of the
command, `CPU s` and `GB` are of all its processes together (proportional set size: shared pages count once), sampled.

What is asked of each seed: the interval of the difference lies above 0.2, and at least two kinds of task improve also
greedily. Of the control: the interval of its difference holds 0.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
MEASURED = "measured.json"
EVERY_S = 2.0
LEAST_GAIN = 0.2
LEAST_KINDS = 2
NO_LEARNING = "trainer.learning_rate=0"


def main() -> None:
    """Run what is missing, then print tables. Exit code 1 when a run does not show what is asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="*", default=[21, 22, 23])
    parser.add_argument("--config", default="examples/demo.toml")
    parser.add_argument("--out", type=Path, default=Path("runs/learning"))
    parser.add_argument("--no-control", action="store_true")
    parser.add_argument("--json", type=Path, help="also write everything that is shown into this file")
    parser.add_argument("words", nargs="*", metavar="section.key=value")
    options = parser.parse_args()
    runs = [run(f"seed-{seed}", seed, options, []) for seed in options.seeds]
    if not options.no_control:
        runs.append(run("control", options.seeds[0], options, [NO_LEARNING]))
    print("\n\n".join([totals(runs), kinds(runs), rewards(runs)]))
    if options.json:
        options.json.write_text(json.dumps(runs, indent=1) + "\n")
    sys.exit(any(row["asked"] != "shown" for row in runs))


def run(name: str, seed: int, options: argparse.Namespace, more: list[str]) -> dict[str, Any]:
    """One run of the command, or what an earlier one left."""
    folder: Path = options.out / name
    if not (folder / MEASURED).exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        words = [f"run.seed={seed}", *options.words, *more]
        print(f"running {name}: {options.config} {' '.join(words)}", file=sys.stderr)
        command = [str(Path(sys.executable).with_name("qwengyre")), "train", options.config, *words]
        measured = measure([*command, "--run-dir", str(folder.resolve())])
        (folder / MEASURED).write_text(json.dumps(measured) + "\n")
    return read(name, seed, folder)


@dataclass
class Use:
    """What a command and all that it started took so far."""

    peak_bytes: int = 0
    cpu_s: float = 0.0

    def look(self, pid: int) -> None:
        """Processes may end meanwhile. What an ended one took is in its parent's account."""
        size, cpu_s = 0, 0.0
        for process in family(pid):
            with contextlib.suppress(psutil.Error):
                memory = process.memory_full_info()
                size += getattr(memory, "pss", memory.rss)
                cpu_s += sum(process.cpu_times()[:4])
        self.peak_bytes, self.cpu_s = max(self.peak_bytes, size), max(self.cpu_s, cpu_s)


def family(pid: int) -> Iterator[psutil.Process]:
    """A process and all below it."""
    with contextlib.suppress(psutil.Error):
        yield (process := psutil.Process(pid))
        yield from process.children(recursive=True)


def measure(command: list[str]) -> dict[str, Any]:
    """Run it to its end."""
    began, use = time.monotonic(), Use()
    with subprocess.Popen(command, cwd=ROOT, stdout=sys.stderr) as process:
        while process.poll() is None:
            use.look(process.pid)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(EVERY_S)
    took = round(time.monotonic() - began, 1)
    return {"exit": process.returncode, "seconds": took, "cpu_s": round(use.cpu_s, 1), "peak_bytes": use.peak_bytes}


def read(name: str, seed: int, folder: Path) -> dict[str, Any]:
    """What is shown of a run."""
    row: dict[str, Any] = {"name": name, "seed": seed} | json.loads((folder / MEASURED).read_text())
    if row["exit"] or not (folder / "summary.json").exists():
        return row | {"asked": f"failed with exit code {row['exit']}"}
    summary = json.loads((folder / "summary.json").read_text())
    moves = [json.loads(line) for line in (folder / "moves.jsonl").read_text().splitlines()]
    row |= {"held_out": summary["held_out"], "reward": summary["reward"], "moves": len(moves)}
    row["live_moves"] = sum(move["live_executions"] > 0 for move in moves)
    return row | {"asked": verdict(row)}


def verdict(row: dict[str, Any]) -> str:
    """`shown`, or what is missing."""
    held_out = row["held_out"]
    difference = held_out["difference"]
    if row["name"] == "control":
        return "shown" if difference["low"] <= 0 <= difference["high"] else "the control's score changed"
    better = [kind for kind, found in held_out["kinds"].items() if found["greedy"]["difference"]["mean"] > 0]
    if difference["low"] <= LEAST_GAIN:
        return f"the interval begins at {difference['low']:.2f}, not above {LEAST_GAIN}"
    if len(better) < LEAST_KINDS:
        return f"{len(better)} kinds improve greedily, not {LEAST_KINDS}"
    return "shown" if row["live_moves"] else "no cell moved while executions lived"


def totals(runs: list[dict[str, Any]]) -> str:
    """A line a run."""
    lines = [
        f"{'run':10} {'before':>19} {'after':>19} {'difference':>21} {'greedy':>12} {'moves':>11} "
        f"{'seconds':>7} {'CPU s':>6} {'GB':>5}  asked for"
    ]
    for row in runs:
        cost = f"{row['seconds']:7.0f} {row['cpu_s']:6.0f} {row['peak_bytes'] / 1e9:5.2f}  {row['asked']}"
        if "held_out" not in row:
            lines.append(f"{row['name']:10} {'':86} {cost}")
            continue
        held_out = row["held_out"]
        before, after, difference = (_interval(held_out[key]) for key in ("before", "after", "difference"))
        moves = f"{row['moves']} ({row['live_moves']} live)"
        lines.append(
            f"{row['name']:10} {before:>19} {after:>19} {difference:>21} {_change(held_out['greedy']):>12} "
            f"{moves:>11} {cost}"
        )
    return "\n".join(lines)


def kinds(runs: list[dict[str, Any]]) -> str:
    """Sampled and greedy, before and after, for each kind of task."""
    shown = [row for row in runs if "held_out" in row]
    names = sorted({kind for row in shown for kind in row["held_out"]["kinds"]})
    lines = [f"{'':10} " + " ".join(f"{name:>24}" for name in names)]
    for row in shown:
        found = [row["held_out"]["kinds"][name] for name in names]
        cells = [f"{_change(kind)}, {_change(kind['greedy'])}" for kind in found]
        lines.append(f"{row['name']:10} " + " ".join(f"{cell:>24}" for cell in cells))
    return "\n".join(["held out by kind of task: sampled, greedy", *lines])


def rewards(runs: list[dict[str, Any]]) -> str:
    """Mean reward of each training step."""
    lines = [f"{row['name']:10} " + " ".join(f"{r:.2f}" for r in row["reward"]) for row in runs if "reward" in row]
    return "\n".join(["training reward by step", *lines])


def _interval(found: dict[str, float]) -> str:
    return f"{found['mean']:.3f} [{found['low']:.2f}, {found['high']:.2f}]"


def _change(found: dict[str, dict[str, float]]) -> str:
    return f"{found['before']['mean']:.2f} to {found['after']['mean']:.2f}"


if __name__ == "__main__":
    main()
