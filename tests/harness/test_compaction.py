"""Forty calls with a forced compaction in every harness that has one: nothing is lost, nothing unknown forks."""

from pathlib import Path
from typing import Any

import pytest
from house import WINDOW, session
from step_by_step import STEPS

from qwengyre.types import Ending

pytestmark = pytest.mark.harness

FORCED: dict[str, tuple[dict[str, Any], int]] = {
    "claude-code": ({"context": 36_500}, WINDOW),
    "codex": ({"compact": 15_000}, WINDOW),
    "opencode": ({"context": 17_000}, WINDOW),
    "pi": ({"context": 4_000, "output": 512, "keep": 300}, 4_000),  # compacts when the window is full
}
"""Harness -> its arguments and the window served, so that it compacts once in forty small steps."""


@pytest.mark.parametrize("kind", sorted(FORCED))
async def test_forty_steps_and_one_compaction(kind: str, tmp_path: Path) -> None:
    args, window = FORCED[kind]
    script = f"{Path(__file__).with_name('step_by_step.py')}:{kind.replace('-', '_')}"
    found = await session(tmp_path, kind, script, "LONGTASK: write the log.", args=args, window=window)
    assert found.ending is Ending.FINISHED
    assert (found.work / "log.txt").read_text().split() == [f"step-{n}" for n in range(1, STEPS + 1)]
    assert len(found.log.calls) == STEPS + 2  # the summary, and the last word
    assert found.log.delivered == {call.call for call in found.log.calls}
    assert [role.role for role in found.roles.values()] == ["main", "main-summary", "main"]
    before, summary, after = found.roles
    inside = [call for call in found.log.calls if call.match == "extend"]
    assert len(inside) >= STEPS - 1  # each call within a context window extends the one before: no token encoded again
    assert found.tree.calls[before] < found.tree.calls[summary] < found.tree.calls[after]
