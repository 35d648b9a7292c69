"""An engine killed in the middle of an answer, and a cell that changes its role in the middle of another: no harness
learns of either."""

import re
from pathlib import Path

import numpy as np
import pytest
from house import Session, Task, finished, session
from step_by_step import SHELLS
from table import Expected, checked
from upset import KILLED, MOVED, Upset

from qwengyre.model import load
from qwengyre.trainer.torch import TorchTrainer
from qwengyre.types import ModelCall

pytestmark = pytest.mark.harness

STEPS = 4
SCRIPTS = Path(__file__).with_name("step_by_step.py")
TROUBLE = re.compile(
    r"retry(ing|_)|reconnect|stream (error|disconnected)|econn|socket hang up|overloaded|"
    r'(connection|api|network) ?error|timed out|"type": ?"error"|"is_error": ?true|traceback',
    re.IGNORECASE,
)
"""What harnesses print when a request of theirs went wrong."""


@pytest.mark.parametrize("kind", sorted(SHELLS))
async def test_a_killed_engine_and_a_change_of_role_are_invisible(kind: str, tmp_path: Path) -> None:
    script = f"{SCRIPTS}:{kind.replace('-', '_')}_{STEPS}"
    log = "".join(f"step-{n}\n" for n in range(1, STEPS + 1))
    place = Upset()
    found = await session(Task(tmp_path, kind, script, "SHORTTASK: write the log.", {"log.txt": log}), place)
    row = checked(kind, "cut answers", found.tree, found.log, found.roles, Expected(("main",)))
    row.score = f"{found.settled.score:g}"
    finished(found)
    assert len(found.log.calls) == STEPS + 1
    troubles = [line for line in found.said.splitlines() if TROUBLE.search(line) and "metadata" not in line]
    assert not troubles, found.said  # (codex says in each session that it has no metadata of the model)
    assert place.killed
    assert len(place.reasons) == 1
    killed, moved = (next(c for c in found.log.calls if c.call == number) for number in (KILLED, MOVED))
    assert _stamps(killed) == [("cell1.0", 1, "stop")]  # begun again: what a dead engine had made is lost
    row.killed = "invisible"
    assert place.moved
    first, second = moved.stretches
    assert _stamps(moved) == [("cell1.0", 1, "abort"), ("cell2.0", 1, "stop")]
    assert 0 < first.end == second.start < second.end == moved.output.size
    assert place.kept > 0
    row.moved = "invisible"
    row.logprobs = f"{_difference(found):.0e}"


def _stamps(call: ModelCall) -> list[tuple[str, int, str]]:
    return [(stretch.engine, stretch.version, stretch.cause) for stretch in call.stretches]


def _difference(found: Session) -> float:
    """Largest difference of the recorded log-probs of the cut answers to those of the trainer's forward."""
    trainer = TorchTrainer(load.causal_lm(load.resolve("tiny-long")), optimizer=False)
    largest = 0.0
    for call in found.log.calls[1:3]:
        ids = np.concatenate([found.tree.path_ids(call.parent), call.suffix, call.output])
        recomputed = trainer.logprobs(ids, (len(ids),), call.temperature)[-call.output.size :]
        largest = max(largest, float(np.abs(recomputed - call.logprobs).max()))
    assert largest < 1e-3
    return largest
