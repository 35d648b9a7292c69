"""The shipped configurations are valid, and the demo shows what its documentation says."""

from pathlib import Path

import pytest

from qwengyre.config import load
from qwengyre.execution.tasksets.quickstart import KINDS

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.toml")), ids=lambda file: file.stem)
def test_every_example_is_valid(file: Path) -> None:
    load([file], [])


@pytest.mark.parametrize("more", [[], ["two_part.toml"]])
def test_the_demo_scores_200_held_out_samples_and_moves_cells(more: list[str]) -> None:
    config = load([EXAMPLES / name for name in ("demo.toml", *more)], [])
    assert config.eval.before
    assert config.eval.after
    assert config.eval.split == "held_out" != config.tasks.split
    assert config.eval.count * config.eval.samples >= 200
    assert config.eval.greedy
    assert (config.cells.count, config.policy.kind) == (2, "elastic")
    assert config.rl.groups_per_step * config.rl.group_size > config.cells.executions  # a cell leaves amid live ones
    for number in (config.rl.groups_per_step, config.tasks.count, config.eval.count):
        assert number % len(KINDS) == 0  # every step has one of each kind, and so has every pass over the tasks
