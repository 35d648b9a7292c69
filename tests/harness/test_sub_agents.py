"""Sub-agents of real harnesses: a context line of its own, told from the main one."""

import json
from pathlib import Path
from typing import Any

import pytest
from house import Task, finished, session
from step_by_step import AGENTS, SHELLS
from table import Expected, checked

pytestmark = pytest.mark.harness

TASK = "SUBTASK: write the file sub.txt."


def script(kind: str) -> str:
    """The sub-agent writes sub.txt; the main thread starts it, waits where it must, writes main.txt."""
    tool, command, others = SHELLS[kind]
    agent, task, more = AGENTS[kind]

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
        + f"[[rule]]\nany = 'MAINTASK'\nreplies = [{call(agent, {task: TASK, **more})}"
        + (", 'unused'" if wait else "")
        + f", {shell('echo main > main.txt')}, 'Done.']\n"
    )


@pytest.mark.parametrize("kind", sorted(AGENTS))
async def test_a_sub_agent_is_a_line_of_its_own(kind: str, tmp_path: Path) -> None:
    wanted = {"main.txt": "main\n", "sub.txt": "sub\n"}
    words = "MAINTASK: write main.txt, and have sub.txt written."
    found = await session(Task(tmp_path, kind, script(kind), words, wanted))
    row = checked(kind, "sub-agent", found.tree, found.log, found.roles, Expected(("main", "sub-agent"), sub_agents=1))
    row.score = f"{found.settled.score:g}"
    finished(found)
    (sub,) = (leaf for leaf, role in found.roles.items() if role.role == "sub-agent")
    assert len([row for row in found.rows if row in found.tree.path(sub)]) == 2
