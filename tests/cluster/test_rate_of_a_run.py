"""The learning rate of a step: by the schedule, logged, and the same for a control that starts again."""

from pathlib import Path

import pytest
import torch
from fleet import Fleet, group

from qwengyre import config as configuration
from qwengyre.cluster.control import Control, ControlSpec

WORDS = ["run.steps=8", "tasks.kind=letters", "trainer.learning_rate=0.1"]
SCHEDULED = [*WORDS, "trainer.schedule=linear", "trainer.warmup_steps=4"]


def rates(folder: Path, words: list[str]) -> list[float]:
    """What a control that starts in this folder would take for each step."""
    control = Control(ControlSpec(configuration.load([], words), folder, 256, 0, {}))
    control._scores.close()
    return [control.learning_rate(step) for step in range(8)]


def test_a_control_that_starts_again_gives_the_same_rates(tmp_path: Path) -> None:
    first = rates(tmp_path, SCHEDULED)
    assert first == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1, 0.075, 0.05, 0.025])
    assert rates(tmp_path, SCHEDULED) == first
    assert set(rates(tmp_path, WORDS)) == {0.1}


async def test_the_rate_of_each_step_is_used_and_logged(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    fleet = Fleet(tmp_path, 1)
    fleet.books.learning_rate = lambda step: 0.1 / (step + 1)  # type: ignore[method-assign]
    try:
        await fleet.start()
        await fleet.join(0)
        for step in range(2):
            await fleet.open(step, {step: group(step, 1)})
            await fleet.trained(step, 1)
            await fleet.training.close(step)
        assert [row["actor/learning_rate"] for row in fleet.books.rows] == [0.1, 0.05]
        asked = [args[2] for name, args, _ in fleet.hands[0].calls if name == "close_step"]
        assert asked == [0.1, 0.05]
    finally:
        await fleet.stop()
