"""Everything of a run again from its folder alone: does what was recorded still give what was recorded?

For each model call: its path is its parent's path + its suffix + its output, and the log-probabilities of its output,
recomputed by the trainer's forward under the weights that the journal names, are those that the engine reported.
"""

import json
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from qwengyre.errors import JournalError
from qwengyre.gateway.journal import read_calls, rebuild
from qwengyre.trajectory.tree import Tree

TOLERANCE = 1e-3
"""Largest difference of log-probabilities that fp32 explains."""


@dataclass
class Agreement:
    """What was compared. `missing` are weight versions whose checkpoint was not kept."""

    calls: int = 0
    tokens: int = 0
    largest: float = 0.0
    missing: set[int] = field(default_factory=set[int])

    def __str__(self) -> str:
        kept = f"; no checkpoint kept of v{sorted(self.missing)}: not recomputed" if self.missing else ""
        compared = f"{self.tokens} log-probs recomputed, largest difference {self.largest:.1e}" if self.tokens else ""
        return f"rebuilt {self.calls} calls, each conditioned on its parent's path + its suffix; {compared}{kept}"


def check(run_dir: Path, progress: Callable[[str], None] = lambda line: None) -> Agreement:
    """Rebuild and compare a whole run. Raises JournalError where it disagrees; needs torch."""
    found = Agreement()
    weights = _weights(run_dir)
    model: tuple[int, Any] = (-1, None)
    for version, spans in sorted(_spans(run_dir, found).items()):
        if version not in weights:
            found.missing.add(version)
            continue
        progress(f"recomputing {len(spans)} outputs under weights v{version}")
        model = (version, _trainer(weights[version]))
        for name, tree, row, start, end in spans:
            _compare(found, name, model[1], tree, row, slice(start, end))
    return found


def _spans(run_dir: Path, found: Agreement) -> dict[int, list[tuple[str, Tree, int, int, int]]]:
    """Weight version -> sampled spans (execution, tree, row, start, end), with every call's conditioning checked."""
    spans: dict[int, list[tuple[str, Tree, int, int, int]]] = {}
    for path in sorted((run_dir / "calls").glob("*.calls")):
        tree = rebuild(path)
        rows = {tree.calls[row]: row for row in tree.versions}
        for call in read_calls(path).calls:
            row = rows[call.call]
            expected = np.concatenate([tree.path_ids(call.parent), call.suffix, call.output])
            if not np.array_equal(tree.path_ids(row), expected):
                raise JournalError(f"{path}, call {call.call}: its path is not parent path + suffix + output")
            found.calls += 1
            for version, start, end in _runs(tree, row):
                spans.setdefault(version, []).append((path.stem, tree, row, start, end))
    return spans


def _runs(tree: Tree, row: int) -> Iterator[tuple[int, int, int]]:
    start = 0
    for end, version in tree.versions[row]:
        yield version, start, end
        start = end


def _weights(run_dir: Path) -> dict[int, Path]:
    """Weight version -> HF folder: the model as given is version 0, the rest are checkpoints."""
    from qwengyre.model import load

    config = tomllib.loads((run_dir / "config.toml").read_text())
    folders = {0: load.resolve(config["model"]["name"])}
    for mark in (run_dir / "checkpoints").glob("step-*/run.json"):
        folders[json.loads(mark.read_text())["version"]] = mark.parent
    return folders


def _trainer(folder: Path) -> Any:
    import torch

    from qwengyre.model.load import causal_lm
    from qwengyre.trainer.torch import TorchTrainer

    torch.set_num_threads(1)  # threads that wait for each other are slower than one, where the machine is shared
    return TorchTrainer(causal_lm(folder), optimizer=False)


def _compare(found: Agreement, name: str, trainer: Any, tree: Tree, row: int, span: slice) -> None:
    ids = tree.path_ids(row)
    temperature = tree.temperatures[row] or 1.0  # greedy: recorded as of the model's own distribution
    again = trainer.logprobs(ids, (len(ids),), temperature)[len(ids) - len(tree.ids(row)) :][span]
    recorded = tree.logprobs(row)[span]
    largest = float(np.abs(again - recorded).max(initial=0.0))
    found.tokens += len(recorded)
    found.largest = max(found.largest, largest)
    if largest > TOLERANCE:
        raise JournalError(f"execution {name}, call {tree.calls[row]}: recomputed log-probs differ by {largest:.1e}")
