"""Tokens and seconds of training a group: flat rows beside trees, on three named shapes, with and without learning.

    python bench/packing.py [--model small default] [--repeats 3] [--json]

`demo`: 8 executions of a 53-token prompt, two turns of 24 new tokens each. `sub-agents`: executions whose main context
hands work to three sub-agents, all with one system text. `compaction`: a context that is summarised twice, each time
going on from the system text, a summary and the kept tail. One torch thread; seconds are process time of forward and
backward of all micro-steps of a group; flat and packed take turns in one process and the best of `--repeats` turns
counts: read the ratios, not the seconds. `gradient` is the norm of the difference over the norm.
"""

import argparse
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch

from qwengyre.model import load
from qwengyre.model.tiny import tiny
from qwengyre.trainer.shape import UNLIMITED
from qwengyre.trainer.torch import TorchTrainer
from qwengyre.trajectory.pack import Recipe, weigh
from qwengyre.trajectory.tree import ROOT, Tree
from qwengyre.types import Ids, Kind, MicroStep, ModelCall, Segment, Settlement, Stretch, Verdict

SHAPES_OF = {"small": ("sub-agents", "compaction"), "default": ("demo",)}
"""What each model is timed on. `small` is 256 wide with 4 layers: attention's share of the work is that of a real model
at these lengths, while in the tiny one (64 wide) it is the most of it, and pairs are saved less than tokens."""
VOCABULARY = 256
"""Ids are drawn below this: both models have them."""


@dataclass
class Writer:
    """Makes trees of random ids. Every context begins with the start of its `system` text, equal in the group."""

    rng: np.random.Generator
    tree: Tree
    calls: int = 0

    def text(self, tokens: int) -> Ids:
        """`tokens` new ids."""
        return self.rng.integers(0, VOCABULARY, tokens).astype(np.int32)

    def call(self, parent: int, suffix: Ids, output: int) -> int:
        """A model call below row `parent`; returns its sampled row."""
        call = ModelCall(
            call=self.calls,
            thread="t",
            parent=parent,
            suffix=suffix,
            segments=(Segment(Kind.CONTEXT, len(suffix)),),
            output=self.text(output),
            logprobs=np.full(output, -5.5, np.float32),
            stretches=(Stretch(0, output, 0, "bench", "stop"),),
            finish="stop",
            temperature=1.0,
        )
        self.calls += 1
        return self.tree.add_call(call)[-1]

    def turns(self, row: int, first: Ids, count: int, result: int, output: int) -> int:
        """`count` calls in a line, the first after `first`, each later one after a result."""
        row = self.call(row, first, output)
        for _ in range(count - 1):
            row = self.call(row, self.text(result), output)
        return row


def demo(writer: Writer, prompt: Ids) -> None:
    """A prompt, an answer, what was wrong with it, another answer."""
    writer.turns(ROOT, prompt[:53], 2, 16, 24)


def sub_agents(writer: Writer, prompt: Ids) -> None:
    """A main context of 6 turns; three sub-agents of 3 turns below one system text."""
    writer.turns(ROOT, prompt[:300], 6, 40, 30)
    for _ in range(3):
        writer.turns(ROOT, np.concatenate([prompt[300:500], writer.text(30)]), 3, 40, 30)


def compaction(writer: Writer, prompt: Ids) -> None:
    """Three contexts; the later ones begin with the system text, a summary, and the kept tail, which is context now."""
    row = writer.turns(ROOT, prompt[:300], 5, 40, 30)
    for _ in range(2):
        summary = writer.call(row, writer.text(20), 40)
        tail = writer.tree.path_ids(row)[-140:]
        first = np.concatenate([prompt[:300], writer.tree.ids(summary), tail, writer.text(10)])
        row = writer.turns(ROOT, first, 4, 40, 30)


SHAPES: dict[str, tuple[Callable[[Writer, Ids], None], int]] = {
    "demo": (demo, 8),
    "sub-agents": (sub_agents, 4),
    "compaction": (compaction, 4),
}
"""Name -> (what an execution does, executions of a group)."""


def group(shape: str, recipe: Recipe) -> list[MicroStep]:
    """The micro-steps of a group, half of whose executions fail."""
    write, members = SHAPES[shape]
    rng = np.random.default_rng(0)
    prompt = rng.integers(0, VOCABULARY, 512).astype(np.int32)
    trees = {member: Tree() for member in range(members)}
    for tree in trees.values():
        write(Writer(rng, tree), prompt)
    return weigh(0, trees, {m: Settlement(Verdict.SCORED, score=m % 2) for m in trees}, recipe)


def spent(trainer: TorchTrainer, micro_steps: list[MicroStep]) -> float:
    """CPU-seconds of their gradient, which stays."""
    trainer.sleep()
    started = time.process_time()
    for micro_step in micro_steps:
        trainer.accumulate(micro_step)
    return time.process_time() - started


def gradient(trainer: TorchTrainer) -> torch.Tensor:
    return torch.cat([g.double().flatten() for _, g in sorted(trainer.gradient().items())])


def measure(model: str, shape: str, trainer: TorchTrainer, repeats: int) -> dict[str, object]:
    """One row of the table."""
    packed = Recipe(seed=0, jmax=5, microstep_tokens=4096, max_sequence=2048, tree_depth=UNLIMITED)
    forms = {"flat": group(shape, replace(packed, tree_depth=0)), "packed": group(shape, packed)}
    seconds: dict[str, float] = dict.fromkeys(forms, float("inf"))
    gradients: dict[str, torch.Tensor] = {}
    for turn in range(repeats + 1):  # the first warms up
        for name, micro_steps in forms.items():
            taken = spent(trainer, micro_steps)
            seconds[name] = min(seconds[name], taken if turn else float("inf"))
            if name not in gradients:
                gradients[name] = gradient(trainer)
    tokens = {name: sum(m.tokens for m in micro_steps) for name, micro_steps in forms.items()}
    difference = float((gradients["packed"] - gradients["flat"]).norm() / gradients["flat"].norm())
    return {
        "model": model,
        "name": shape,
        "flat_tokens": tokens["flat"],
        "packed_tokens": tokens["packed"],
        "flat_s": round(seconds["flat"], 4),
        "packed_s": round(seconds["packed"], 4),
        "token_ratio": round(tokens["packed"] / tokens["flat"], 3),
        "time_ratio": round(seconds["packed"] / seconds["flat"], 3),
        "gradient": float(f"{difference:.1e}"),
    }


def rows(args: argparse.Namespace) -> Iterator[dict[str, object]]:
    for model in args.model:
        with tempfile.TemporaryDirectory() as made:
            tiny(Path(made), layers=4, hidden=256)
            folder = Path(made) if model == "small" else load.resolve(load.DEFAULT)
            trainer = TorchTrainer(load.causal_lm(folder), optimizer=False)
        for shape in SHAPES_OF[model]:
            yield measure(model, shape, trainer, args.repeats)


def main() -> int:
    """Print the table; 1 when a packed gradient is not the flat one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=SHAPES_OF, default=list(SHAPES_OF))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found = list(rows(args))
    if args.json:
        print(json.dumps(found))
    else:
        print(f"{'model':8} {'shape':11} {'flat':>14} {'packed':>14} {'tokens':>7} {'time':>6}  gradient")
        for row in found:
            print(
                f"{row['model']:8} {row['name']:11} {row['flat_tokens']:6} {row['flat_s']:6.2f}s "
                f"{row['packed_tokens']:6} {row['packed_s']:6.2f}s {row['token_ratio']:7} {row['time_ratio']:6}  "
                f"{row['gradient']:.0e}"
            )
    return int(any(float(str(row["gradient"])) > 1e-5 for row in found))


if __name__ == "__main__":
    sys.exit(main())
