"""The trajectory processor at full size: time and memory of trees, selection, and what packing and Jmax save.

    python bench/processor.py [--json] [--held 200] [--repeats 3] [--run DIR] [--no-training]

`build_s`: 1M tokens in 1,200 rows, from recorded calls. `rebuild_s`: the same from the journal's file, and written as
the file that is mapped. `select_ms`: 5 trajectories drawn of it; `roles_ms` and `arrays_ms`: telling the roles of its
leaves, and the token arrays of the five. `bytes_per_token`: of the file that is mapped. `held`: executions of 120K
tokens, held at once as they wait for their group: what they take of the machine's memory, without the maps (file pages,
which the system drops when it needs them) and with all of them resident.
`shapes`: tokens and CPU-seconds of forward and backward, flat rows beside shared prefixes (`bench/packing.py`).
`jmax`: CPU-seconds of forward and backward of branching executions' trajectories, capped and not, in flat rows and
packed; beside them the part that the paper measured. `--run DIR` takes the most branching ones that a run has recorded,
else two are made up: a compaction, retries, six sub-agents. The model is a small one either way.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import psutil

from qwengyre.gateway.frozen import Frozen, frozen
from qwengyre.gateway.journal import Journal, Writer, rebuild
from qwengyre.trajectory.columns import columns
from qwengyre.trajectory.roles import roles
from qwengyre.trajectory.select import rng_for, select, trajectory
from qwengyre.trajectory.tree import ROOT, Tree
from qwengyre.types import ExecutionId, Kind, ModelCall, Segment, Stretch

EXECUTION = ExecutionId(0, 0)
CALLS, TOKENS = 400, 1_000_000
"""Three rows a call: 1,200."""
HELD_TOKENS = 120_000
PAPER = {"1": 0.414, "5": 0.748, "uncapped": 1.0}


def recorded(calls: int, tokens: int, seed: int = 0) -> list[ModelCall]:
    """An execution of `calls` calls and `tokens` distinct tokens in 8 contexts of 5 branches; a third is sampled."""
    rng = np.random.default_rng(seed)
    made: list[ModelCall] = []
    parent, each = ROOT, tokens // calls
    for number in range(calls):
        suffix = rng.integers(0, 150_000, each * 2 // 3).astype(np.int32)
        output = rng.integers(0, 150_000, each - len(suffix)).astype(np.int32)
        request: dict[str, Any] = {"messages": [{"role": "tool", "call_id": f"c{number - 1}", "text": "x" * 4 * each}]}
        if parent == ROOT:
            request = {"messages": [{"role": "user", "text": f"Task {number}"}], "tools": [{}]}
        made.append(
            ModelCall(
                call=number,
                thread="main",
                parent=parent,
                suffix=suffix,
                segments=(Segment(Kind.CONTEXT, len(suffix) - 3), Segment(Kind.GLUE, 3)),
                output=output,
                logprobs=-rng.random(len(output), np.float32),
                stretches=(Stretch(0, len(output), number // 100, "cell0.0", "stop"),),
                finish="stop",
                temperature=1.0,
                request=request | {"chains": []},
                response={"text": "", "calls": [{"id": f"c{number}", "name": "f", "arguments": '{"command": "make"}'}]},
            )
        )
        row = 3 * number + 2
        parent = (ROOT if number % 50 == 49 else row - 9) if number % 10 == 9 else row
    return made


def grown(calls: list[ModelCall]) -> Tree:
    """The tree of recorded calls."""
    tree = Tree()
    for call in calls:
        tree.add_call(call)
    return tree


def best(work: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """Least CPU-seconds of `repeats` turns, and the last result."""
    least, result = float("inf"), None
    for _ in range(repeats):
        started = time.process_time()
        result = work()
        least = min(least, time.process_time() - started)
    return least, result


def write(path: Path, calls: list[ModelCall]) -> None:
    """The journal of an ended execution."""

    async def append() -> None:
        writer = Writer()
        journal = Journal(path, writer, 0)
        journal.opened(path.stem)
        for call in calls:
            journal.call(call)
            journal.delivered(call.call)
        journal.seal()
        await writer.idle()
        journal.close()

    asyncio.run(append())


def trees(folder: Path, repeats: int) -> dict[str, Any]:
    """One execution at full size."""
    calls = recorded(CALLS, TOKENS)
    build_s, tree = best(lambda: grown(calls), repeats)
    journal = folder / "0-0.calls"
    write(journal, calls)
    rebuild_s, again = best(lambda: rebuild(journal), repeats)
    found = frozen(journal)
    arrays = [columns(t).arrays for t in (tree, again, found.tree())]
    same = all(np.array_equal(arrays[0][name], other[name]) for name in arrays[0] for other in arrays[1:])
    roles_s, of_leaves = best(lambda: roles(tree, calls), repeats)
    select_s, picks = best(lambda: select(tree, of_leaves, rng_for(0, EXECUTION), 5), repeats)
    arrays_s, _ = best(lambda: [trajectory(tree, pick, EXECUTION) for pick in picks], repeats)
    return {
        "tokens": tree.num_tokens,
        "nodes": len(tree),
        "leaves": len(of_leaves),
        "trajectories": len(picks),
        "build_s": round(build_s, 4),
        "rebuild_s": round(rebuild_s, 4),
        "rebuilt_identical": same,
        "select_ms": round(1000 * select_s, 2),
        "roles_ms": round(1000 * roles_s, 2),
        "arrays_ms": round(1000 * arrays_s, 2),
        "bytes_per_token": round(found.path.stat().st_size / tree.num_tokens, 2),
    }


def held(folder: Path, count: int) -> dict[str, Any]:
    """`count` ended executions at once. One is written; the others are links to it under their own names, mapped each
    for itself: what a map takes of memory is the same, and the disk is spared."""
    write(folder / "1-0.calls", recorded(60, HELD_TOKENS))
    frozen(folder / "1-0.calls")
    for member in range(1, count):
        for kind in ("calls", "tree"):
            os.link(folder / f"1-0.{kind}", folder / f"1-{member}.{kind}")
    process = psutil.Process()
    before = process.memory_full_info()
    waiting: list[tuple[Frozen, Tree]] = []
    for member in range(count):
        found = frozen(folder / f"1-{member}.calls")
        waiting.append((found, found.tree()))
    after = process.memory_full_info()
    tokens = sum(tree.num_tokens for _, tree in waiting)
    whole = (after.rss - after.shared) - (before.rss - before.shared)
    maps = sum(found.columns.nbytes for found, _ in waiting)
    return {
        "executions": count,
        "tokens": tokens,
        "memory_mb": round(whole / 2**20, 1),
        "mapped_mb": round(maps / 2**20, 1),
        "memory_gib_of_3800": round(whole / count * 3800 / 2**30, 3),
        "resident_gib_of_3800": round((whole + maps) / count * 3800 / 2**30, 2),
    }


def training(repeats: int, recorded_run: Path | None) -> dict[str, Any]:
    """What packing and Jmax save, in tokens and seconds."""
    import packing
    import torch

    from qwengyre.trainer.shape import UNLIMITED
    from qwengyre.trajectory.pack import Recipe, weigh
    from qwengyre.types import Settlement, Verdict

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    small, smaller = (_trainer(layers, hidden) for layers, hidden in ((4, 256), (2, 128)))
    shapes = [packing.measure("small", name, small, repeats) for name in SHAPES]
    run = of_run(recorded_run) if recorded_run else {member: branching(member) for member in range(2)}
    longest = max(len(tree.path_ids(leaf)) for tree in run.values() for leaf in tree.leaves())
    recipe = Recipe(0, jmax=5, microstep_tokens=max(4096, longest), max_sequence=longest, tree_depth=UNLIMITED)
    settled = {member: Settlement(Verdict.SCORED, score=float(member % 2)) for member in range(2)}
    trainer, repeats = (smaller, 1) if recorded_run else (small, repeats)  # long contexts take minutes
    rows: dict[str, dict[str, Any]] = {}
    for name, jmax in (("uncapped", 10_000), ("5", 5), ("1", 1)):
        row: dict[str, Any] = {"paper": PAPER[name]}
        for form, depth in (("flat", 0), ("packed", UNLIMITED)):
            micro_steps = weigh(0, run, settled, replace(recipe, jmax=jmax, tree_depth=depth))
            row[f"{form}_tokens"] = sum(m.tokens for m in micro_steps)
            row[f"{form}_s"] = round(min(packing.spent(trainer, micro_steps) for _ in range(repeats)), 4)
            row["targets"] = sum(int(np.count_nonzero(m.weights)) for m in micro_steps)
        whole = rows.get("uncapped", row)
        row |= {f"{form}_share": round(row[f"{form}_s"] / whole[f"{form}_s"], 3) for form in ("flat", "packed")}
        rows[name] = row
    keys = ("name", "flat_tokens", "packed_tokens", "flat_s", "packed_s", "token_ratio", "time_ratio", "gradient")
    return {"shapes": [{key: row[key] for key in keys} for row in shapes], "jmax": rows}


def _trainer(layers: int, hidden: int) -> Any:
    from qwengyre.model import load
    from qwengyre.model.tiny import tiny
    from qwengyre.trainer.torch import TorchTrainer

    with tempfile.TemporaryDirectory() as made:
        tiny(Path(made), layers=layers, hidden=hidden)
        return TorchTrainer(load.causal_lm(Path(made)), optimizer=False)


def of_run(folder: Path) -> dict[int, Tree]:
    """The two executions with the most leaves that a run has recorded; ids are folded into a small vocabulary."""
    import packing

    found = [rebuild(path) for path in (folder / "calls").glob("*.calls")]
    found.sort(key=lambda tree: -len(list(tree.leaves())))
    for tree in found[:2]:
        tree.all_ids[:] %= packing.VOCABULARY
    if len(found) < 2:
        raise SystemExit(f"{folder} has fewer than two executions with calls")
    return dict(enumerate(found[:2]))


def branching(seed: int) -> Tree:
    """An execution with a main context of two windows, a summary, six sub-agents and four retries: 13 leaves."""
    import packing

    rng = np.random.default_rng(seed)
    tree = Tree()
    prompt = np.random.default_rng(7).integers(0, packing.VOCABULARY, 512).astype(np.int32)
    writer = packing.Writer(rng, tree)
    row = writer.turns(ROOT, prompt[:300], 6, 40, 30)
    for _ in range(2):
        writer.call(row, writer.text(20), 30)  # a retry that the next call goes on without
    summary = writer.call(row, writer.text(20), 60)
    first = np.concatenate([prompt[:300], tree.ids(summary), tree.path_ids(row)[-140:], writer.text(10)])
    row = writer.turns(ROOT, first, 6, 40, 30)
    for _ in range(2):
        writer.call(row, writer.text(20), 30)
    for _ in range(6):
        writer.turns(ROOT, np.concatenate([prompt[300:500], writer.text(30)]), 3, 40, 30)
    return tree


SHAPES = ("demo", "sub-agents", "compaction")


def table(found: dict[str, Any]) -> None:
    """For a human."""
    for key, value in found.items():
        if not isinstance(value, dict | list):
            print(f"{key:26} {value}")
    print("held:", ", ".join(f"{key} {value}" for key, value in found["held"].items()))
    for row in found.get("shapes", []):
        print("shape", ", ".join(f"{key} {value}" for key, value in row.items()))
    for name, row in found.get("jmax", {}).items():
        print(f"Jmax {name:9}", ", ".join(f"{key} {value}" for key, value in row.items()))


def main() -> int:
    """Print; 1 when the rebuilt tree is another one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--held", type=int, default=200, help="executions of 120K tokens held at once")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--run", type=Path, metavar="DIR", help="a run folder whose executions branch")
    parser.add_argument("--no-training", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        found = trees(Path(made), args.repeats) | {"held": held(Path(made), args.held)}
    if not args.no_training:
        found |= training(args.repeats, args.run)
    if args.json:
        print(json.dumps(found, indent=1))
    else:
        table(found)
    return int(not found["rebuilt_identical"])


if __name__ == "__main__":
    sys.exit(main())
