"""Sub-agents of real harnesses: a context line of its own, told from the main one."""

import json
from pathlib import Path
from typing import Any

import pytest
from house import session
from test_terminal_agents import TOOLS

from qwengyre.types import Ending

pytestmark = pytest.mark.harness

TASK = "SUBTASK: write the file sub.txt."
AGENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "claude-code": (
        "Agent",
        {"description": "Write", "prompt": TASK, "subagent_type": "general-purpose", "run_in_background": False},
    ),
    "codex": ("multi_agent_v1.spawn_agent", {"message": TASK}),
    "opencode": ("task", {"description": "Write", "prompt": TASK, "subagent_type": "general"}),
    "qwen-code": (
        "agent",
        {"description": "Write", "prompt": TASK, "subagent_type": "general-purpose", "run_in_background": False},
    ),
}
"""Harness -> the tool that starts a sub-agent, and its arguments."""


def script(kind: str) -> str:
    """The sub-agent writes sub.txt; the main thread starts it, waits where it must, writes main.txt."""
    tool, command, others = TOOLS[kind]

    def shell(words: str) -> str:
        return call(tool, {command: words, **others})

    def call(name: str, arguments: dict[str, Any]) -> str:
        return f"{{calls = [{{name = {json.dumps(name)}, arguments = '''{json.dumps(arguments)}'''}}]}}"

    wait = ""
    if kind == "codex":
        found = r"""last = '"agent_id": ?"(?P<id>[^"]+)"' """
        wait = f"[[rule]]\n{found}\nreplies = [{call('multi_agent_v1.wait_agent', {'targets': ['{id}']})}]\n"
    return (
        f"[[rule]]\nany = '\\nSUBTASK: '\nreplies = [{shell('echo sub > sub.txt')}, 'I wrote it.']\n"
        + wait
        + f"[[rule]]\nany = 'MAINTASK'\nreplies = [{call(*AGENTS[kind])}"
        + (", 'unused'" if wait else "")
        + f", {shell('echo main > main.txt')}, 'Done.']\n"
    )


@pytest.mark.parametrize("kind", sorted(AGENTS))
async def test_a_sub_agent_is_a_line_of_its_own(kind: str, tmp_path: Path) -> None:
    found = await session(tmp_path, kind, script(kind), "MAINTASK: write main.txt, and have sub.txt written.")
    assert found.ending is Ending.FINISHED
    assert {path.name: path.read_text() for path in found.work.iterdir()} == {"main.txt": "main\n", "sub.txt": "sub\n"}
    leaves = list(found.tree.leaves())
    assert len(leaves) == 2
    assert sorted(len([row for row in found.rows if row in found.tree.path(leaf)]) for leaf in leaves)[0] == 2
    assert sorted(role.role for role in found.roles.values()) == ["main", "sub-agent"]
