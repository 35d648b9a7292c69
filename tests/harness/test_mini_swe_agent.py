"""mini-swe-agent as it is published, in the sandbox, through whole sessions of a scripted model.

Its own default configuration: tool calls, several in one answer, an answer without one (which it leaves out).
"""

from pathlib import Path

import pytest
from harness_runs import journals, scores, train, trained
from table import Expected, Row, checked

from qwengyre.trajectory.roles import roles
from qwengyre.types import Kind

pytestmark = pytest.mark.harness

SCRIPT = r"""
[[rule]]                        # no action: the turn is rejected
turns = 0
last = "Create a folder named"
replies = ["Let me think first."]

[[rule]]
turns = 0
execution = "-0$"
first = 'Create a folder named (?P<name>\w+)'
replies = [{think = "Now.", calls = [
  {name = "bash", arguments = {command = "ls"}},
  {name = "bash", arguments = {command = "mkdir {name}"}},
]}]

[[rule]]
turns = 0
first = 'Create a folder named (?P<name>\w+)'
replies = [{text = "Both.", calls = [{name = "bash", arguments = {command = "mkdir {name} another"}}]}]

[[rule]]
turns = 1
replies = [{calls = [{name = "bash", arguments = {command = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}}]}]
"""


def test_a_rejected_turn_and_a_training_step(tmp_path: Path) -> None:
    """Three calls: rejected, acting, submitting. The second does not extend the first; the third extends the second."""
    run_dir = train(tmp_path, "mini-swe-agent", SCRIPT)
    found = scores(run_dir)
    assert found == {"0-0": 1.0, "0-1": 0.5}
    rows: list[Row] = []
    for (tree, log), (execution, score) in zip(journals(run_dir), sorted(found.items()), strict=True):
        expected = Expected(("main", "main"), {"rejected turn": 1})
        rows.append(checked("mini-swe-agent", f"training {execution}", tree, log, roles(tree, log.calls), expected))
        rows[-1].score = f"{score:g}"
        assert len(log.calls) == 3
        sampled = {tree.calls[row]: row for row in tree.versions}
        rejected, acting, submitting = (sampled[call.call] for call in log.calls)
        assert rejected in tree.leaves()
        assert rejected not in tree.path(acting)
        assert acting in tree.path(submitting)
        assert tree.kinds.count(Kind.SAMPLED) == 3
    compared = trained(run_dir)
    assert compared.calls == 6
    for row in rows:
        row.logprobs = f"{compared.largest:.0e}"
    for log in (run_dir / "executions").glob("*/harness.log"):
        assert "Traceback" not in log.read_text()
