"""mini-swe-agent as it is published, in the sandbox, through whole sessions of a scripted model.

Its own default configuration: tool calls, several in one answer, an answer without one (which it leaves out).
"""

import json
from pathlib import Path

import pytest
from running import lines, qwengyre

from qwengyre import profiles
from qwengyre.gateway.journal import read_calls, rebuild
from qwengyre.observe.rebuild import check
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
CONFIG = """
[run]
steps = 1
[model]
name = "tiny-long"
[engine]
kind = "scripted"
args = {{ script = "{script}" }}
[harness]
kind = "mini-swe-agent"
[rl]
groups_per_step = 1
group_size = 2
max_tokens = 512
[trainer]
max_sequence = 16384
microstep_tokens = 16384
"""


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run of two executions."""
    folder = tmp_path_factory.mktemp("mini")
    (folder / "script.toml").write_text(SCRIPT)
    (folder / "mini.toml").write_text(CONFIG.format(script=folder / "script.toml"))
    done = qwengyre("train", str(folder / "mini.toml"), "--run-dir", str(folder / "run"), timeout_s=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "run"


def test_it_does_the_task_unmodified(run_dir: Path) -> None:
    scores = {line["execution"]: line for line in lines(run_dir / "scores.jsonl")}
    assert {name: line["score"] for name, line in scores.items()} == {"0-0": 1.0, "0-1": 0.5}
    for execution in scores:
        ended = json.loads((run_dir / "executions" / execution / "ending.json").read_text())
        assert ended["ending"] == "finished", ended
        assert "Traceback" not in (run_dir / "executions" / execution / "harness.log").read_text()


def test_every_call_is_recorded_and_forks_only_where_its_profile_says(run_dir: Path) -> None:
    """Three calls: rejected, acting, submitting. The second does not extend the first; the third extends the second."""
    assert [fork.name for fork in profiles.read("mini-swe-agent").known_forks] == ["rejected turn"]
    for path in (run_dir / "calls").glob("*.calls"):
        tree, log = rebuild(path), read_calls(path)
        assert log.sealed
        assert len(log.calls) == 3
        assert log.delivered == {call.call for call in log.calls}
        assert all(call.output.size and call.output.size == call.logprobs.size for call in log.calls)
        sampled = {tree.calls[row]: row for row in tree.versions}
        rejected, acting, submitting = (sampled[call.call] for call in log.calls)
        assert rejected in tree.leaves()
        assert rejected not in tree.path(acting)
        assert acting in tree.path(submitting)
        assert tree.kinds.count(Kind.SAMPLED) == 3
        found = roles(tree, log.calls)
        assert {leaf.role for leaf in found.values()} == {"main"}


def test_its_step_has_a_gradient_and_its_logprobs_are_true(run_dir: Path) -> None:
    (row,) = lines(run_dir / "metrics.jsonl")
    assert row["actor/grad_norm"] > 0
    found = check(run_dir)
    assert (found.calls, found.missing) == (6, set())
    assert found.largest < 1e-3
