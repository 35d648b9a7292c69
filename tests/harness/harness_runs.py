"""One training step from a real harness and a scripted model: what the tests of all of them share."""

import json
import tomllib
from pathlib import Path
from typing import Any

from running import lines, qwengyre

from qwengyre.gateway.journal import CallLog, read_calls, rebuild
from qwengyre.observe.rebuild import Agreement, check
from qwengyre.trajectory.tree import Tree

CONFIG = """
[run]
steps = 1
[model]
name = "tiny-long"
[engine]
kind = "scripted"
args = {{ script = "{script}" }}
[harness]
kind = "{kind}"
timeout_s = 900
{harness}
[sandbox]
memory_mb = 3072
pids = 256
[rl]
groups_per_step = 1
group_size = 2
max_tokens = 512
[trainer]
max_sequence = 65536
microstep_tokens = 65536
"""


def train(folder: Path, kind: str, script: str, harness: str = "") -> Path:
    """The run folder of one step of two executions of `Create a folder named ...`; installs the harness first.

    `script` as in `engine.args`, or the text of its rules; `harness`: more lines of `[harness]`.
    """
    if "\n" in script:
        (folder / "script.toml").write_text(script)
        script = str(folder / "script.toml")
    (folder / "run.toml").write_text(CONFIG.format(script=script, kind=kind, harness=harness))
    done = qwengyre("train", str(folder / "run.toml"), "--run-dir", str(folder / "run"), timeout_s=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "run"


def scores(run_dir: Path) -> dict[str, float]:
    """Execution -> score; all of them ended by themselves."""
    found = {line["execution"]: line["score"] for line in lines(run_dir / "scores.jsonl")}
    for execution in found:
        folder = run_dir / "executions" / execution
        ended: dict[str, Any] = json.loads((folder / "ending.json").read_text())
        assert ended["ending"] == "finished", (ended, (folder / "harness.log").read_text()[-3000:])
    return found


def journals(run_dir: Path) -> list[tuple[Tree, CallLog]]:
    """Tree and recorded calls of each execution: sealed, delivered, each with ids and log-probs."""
    found: list[tuple[Tree, CallLog]] = []
    for path in sorted((run_dir / "calls").glob("*.calls")):
        tree, log = rebuild(path), read_calls(path)
        assert log.sealed
        assert log.delivered == {call.call for call in log.calls}
        assert all(call.output.size and call.output.size == call.logprobs.size for call in log.calls)
        found.append((tree, log))
    return found


def trained(run_dir: Path) -> Agreement:
    """The step had a gradient and recomputed log-probs agree; returns what was compared."""
    assert metrics(run_dir)["actor/grad_norm"] > 0
    found = check(run_dir)
    assert not found.missing
    assert found.largest < 1e-3
    return found


def run_config(run_dir: Path) -> dict[str, Any]:
    """Its configuration, every key."""
    return tomllib.loads((run_dir / "config.toml").read_text())


def metrics(run_dir: Path) -> dict[str, Any]:
    """The line of its one step."""
    (row,) = lines(run_dir / "metrics.jsonl")
    return row
