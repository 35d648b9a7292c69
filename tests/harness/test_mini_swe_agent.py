"""mini-swe-agent as it is published, in the sandbox, through whole sessions of a scripted model.

Its own default configuration: tool calls, several in one answer, an answer without one (which it leaves out).
"""

from pathlib import Path

import pytest
from harness_runs import journals, scores, train, trained
from table import ROWS, Expected, checked

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


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run of two executions."""
    return train(tmp_path_factory.mktemp("mini"), "mini-swe-agent", SCRIPT)


def test_it_does_the_task_unmodified(run_dir: Path) -> None:
    assert scores(run_dir) == {"0-0": 1.0, "0-1": 0.5}
    for log in (run_dir / "executions").glob("*/harness.log"):
        assert "Traceback" not in log.read_text()


def test_every_call_is_recorded_and_forks_only_where_its_profile_says(run_dir: Path) -> None:
    """Three calls: rejected, acting, submitting. The second does not extend the first; the third extends the second."""
    found = scores(run_dir)
    for (tree, log), (execution, score) in zip(journals(run_dir), sorted(found.items()), strict=True):
        expected = Expected(("main", "main"), {"rejected turn": 1})
        row = checked("mini-swe-agent", f"training {execution}", tree, log, roles(tree, log.calls), expected)
        row.score = f"{score:g}"
        assert len(log.calls) == 3
        sampled = {tree.calls[row]: row for row in tree.versions}
        rejected, acting, submitting = (sampled[call.call] for call in log.calls)
        assert rejected in tree.leaves()
        assert rejected not in tree.path(acting)
        assert acting in tree.path(submitting)
        assert tree.kinds.count(Kind.SAMPLED) == 3


def test_its_step_has_a_gradient_and_its_logprobs_are_true(run_dir: Path) -> None:
    compared = trained(run_dir)
    assert compared.calls == 6
    for row in (row for row in ROWS if row.harness == "mini-swe-agent" and row.task.startswith("training")):
        row.logprobs = f"{compared.largest:.0e}"
