"""Forty calls in every harness, with a forced compaction where it has one: nothing is lost, nothing unknown forks."""

from pathlib import Path
from typing import Any

import pytest
from house import WINDOW, Task, finished, session
from table import Expected, checked

pytestmark = pytest.mark.harness

STEPS = 40
SCRIPTS = Path(__file__).with_name("step_by_step.py")
ONCE = Expected(("main", "main-summary", "main"), {"summary request": 1, "after a compaction": 1})
CASES: dict[str, tuple[dict[str, Any], int, int, Expected]] = {
    "claude-code": ({"context": 36_500}, WINDOW, 2, ONCE),
    "codex": ({"compact": 15_000}, WINDOW, 2, ONCE),
    "mini-swe-agent": ({}, WINDOW, 1, Expected(("main",))),
    "opencode": ({"context": 17_000}, WINDOW, 2, ONCE),
    "pi": ({"context": 4_000, "output": 512, "keep": 300}, 4_000, 2, ONCE),  # compacts when the window is full
    "qwen-code": (
        {"context": 62_000},
        WINDOW,
        2,
        Expected(("main-summary", "main", "main"), {"after a compaction": 2}),
    ),
}
"""Harness -> its arguments and the window served, so that it compacts once in forty small steps; its calls beside the
steps (the last word, the summary); the leaves and forks of that."""


@pytest.mark.parametrize("kind", sorted(CASES))
async def test_forty_steps_and_one_compaction(kind: str, tmp_path: Path) -> None:
    args, window, more, expected = CASES[kind]
    script = f"{SCRIPTS}:{kind.replace('-', '_')}_{STEPS}"
    log = "".join(f"step-{n}\n" for n in range(1, STEPS + 1))
    task = Task(tmp_path, kind, script, "LONGTASK: write the log.", {"log.txt": log}, args, window=window)
    found = await session(task)
    row = checked(kind, "40 calls", found.tree, found.log, found.roles, expected)
    row.score = f"{found.settled.score:g}"
    finished(found, refused=int(kind == "pi"))
    assert len(found.log.calls) == STEPS + more
    inside = [call for call in found.log.calls if call.match == "extend"]
    assert len(inside) >= STEPS - 1  # each call within a context window extends the one before
