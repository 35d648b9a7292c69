"""One of several cells dies at a named point: no execution dies with it, and no harness notices."""

from pathlib import Path

import pytest
from harm import Point, Run, action, event

pytestmark = pytest.mark.chaos

CONFIG = "examples/elastic.toml"
EXECUTIONS = 32
"""2 steps of 4 groups of 4."""


def check(run: Run, cell: int) -> None:
    """What must be true whichever cell died."""
    run.check_whole(steps=2)
    assert run.verdicts() == {"scored": EXECUTIONS}, "no execution is lost with a cell"
    assert run.harness_errors() == []
    run.check_harnesses()
    journal = run.journal()
    lost = [e["event"]["cell"] for e in journal if e["event"]["type"] == "cell_lost"]
    assert lost == [cell]


def training(*cells: int) -> Point:
    """All of these cells train: each moved there, and was not asked to leave since."""

    def point(journal: list[dict[str, object]]) -> bool:
        roles: dict[int, str] = {}
        for entry in journal:
            moved = entry["event"]
            if moved["type"] == "moved":
                roles[moved["cell"]] = moved["role"]
            roles |= {a["cell"]: "moving" for a in entry["actions"] if a["type"] == "move"}
        return all(roles.get(cell) == "training" for cell in cells)

    return point


def test_satellite_dies_while_it_rolls(tmp_path: Path) -> None:
    """Its live calls go on at the core, its executions get new homes, and it comes back with the published weights."""
    with Run(tmp_path / "run", "run.steps=2", config=CONFIG) as run:
        run.wait_for_calls(6)
        run.kill("cell-1")
        check(run, 1)
        assert any(e["event"]["type"] == "cell_ready" and e["event"]["incarnation"] == 1 for e in run.journal())


def test_satellite_dies_while_it_trains(tmp_path: Path) -> None:
    """Its unacknowledged micro-steps are trained by others."""
    with Run(tmp_path / "run", "run.steps=2", "trainer.microstep_tokens=64", config=CONFIG) as run:
        run.wait_for(training(0, 1))
        run.kill("cell-1")
        check(run, 1)


def test_last_rollout_cell_dies_while_the_rest_trains(tmp_path: Path) -> None:
    """Its executions wait without a home until the core returns or it is back."""
    with Run(tmp_path / "run", "run.steps=2", config=CONFIG) as run:
        run.wait_for(training(0))
        run.kill("cell-1")
        check(run, 1)


def test_middle_cell_of_the_prefix_dies(tmp_path: Path) -> None:
    """It stays out of the order while a later cell trains."""
    with Run(tmp_path / "run", "run.steps=2", "cells.count=3", "trainer.microstep_tokens=64", config=CONFIG) as run:
        run.wait_for(training(0, 1, 2))
        run.kill("cell-1")
        check(run, 1)


@pytest.mark.parametrize("point", ["trains", "publishes"])
def test_core_of_two_dies(tmp_path: Path, point: str) -> None:
    """The satellite goes on with its calls until the core is back; then all go back to the newest checkpoint."""
    points = {"trains": training(0), "publishes": action("publish")}
    with Run(tmp_path / "run", "run.steps=2", "trainer.microstep_tokens=64", config=CONFIG) as run:
        run.wait_for(points[point])
        run.kill("cell-0")
        check(run, 0)


def test_control_of_two_dies_in_a_move(tmp_path: Path) -> None:
    """Actions are asked and not answered: both cells are taken up where they are and start from the checkpoint."""
    with Run(tmp_path / "run", "run.steps=2", config=CONFIG) as run:
        run.wait_for(action("move", role="training"))
        run.kill("control")
        run.check_whole(steps=2)
        assert run.verdicts() == {"scored": EXECUTIONS}
        assert run.harness_errors() == []
        run.check_harnesses()
        assert any(e["event"]["type"] == "rolled_back" for e in run.journal())
        assert event("cell_ready", 4)(run.journal())
