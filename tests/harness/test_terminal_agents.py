"""The agents from npm as they are published: a small file task each, in the sandbox, one training step from it.

The model's answers are scripted: one execution does the task, the other makes a folder too many.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness_runs import journals, scores, train, trained

from qwengyre.trajectory.roles import roles
from qwengyre.types import Kind

pytestmark = pytest.mark.harness

TOOLS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "claude-code": ("Bash", "command", {"description": "Make it"}),
    "codex": ("exec_command", "cmd", {}),
    "opencode": ("bash", "command", {"description": "Make it"}),
    "pi": ("bash", "command", {}),
    "qwen-code": ("run_shell_command", "command", {"is_background": False}),
}
"""Harness -> its shell tool, the argument that holds the command, and the others that it needs."""


def script(kind: str) -> str:
    """Think, call the shell, look at the result with a second call, say that it is done."""
    tool, command, others = TOOLS[kind]

    def call(words: str) -> str:
        arguments = ", ".join(f"{key} = {json.dumps(value)}" for key, value in {command: words, **others}.items())
        return f'{{name = "{tool}", arguments = {{{arguments}}}}}'

    def rule(where: str, words: str) -> str:
        first = f'{{think = "A folder.", text = "I make it.", calls = [{call(words)}]}}'
        return f"[[rule]]\n{where}\nreplies = [{first}, {{calls = [{call('ls -la')}]}}, 'Done.']\n"

    task = r"any = 'Create a folder named (?P<name>\w+)\.'"
    return rule(f"{task}\nexecution = '-0$'", "mkdir {name}") + rule(task, "mkdir {name} another")


@pytest.fixture(scope="module", params=sorted(TOOLS))
def run_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run of each."""
    return train(tmp_path_factory.mktemp(request.param), request.param, script(request.param))


def test_a_small_task_becomes_a_training_step(run_dir: Path) -> None:
    assert scores(run_dir) == {"0-0": 1.0, "0-1": 0.5}
    for tree, log in journals(run_dir):
        assert len(log.calls) == 3
        assert tree.kinds.count(Kind.SAMPLED) == 3
        (leaf,) = tree.leaves()  # each call extends the one before: no fork, no token encoded again
        ids = tree.path_ids(leaf)
        assert len(ids) == sum(call.suffix.size + call.output.size for call in log.calls)
        assert np.array_equal(ids, np.concatenate([part for c in log.calls for part in (c.suffix, c.output)]))
        assert [found.role for found in roles(tree, log.calls).values()] == ["main"]
    assert trained(run_dir) == 6
