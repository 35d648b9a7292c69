"""A script for the scripted engine: forty steps, one shell command each, whatever the harness forgets meanwhile.

`engine.args.script = "<this file>:claude_code"`, one function a harness. The number of the last step stands in every
context: in a command, its output, or the summary that this script gives where one is asked for.
"""

import re
from collections.abc import Callable
from typing import Any

from qwengyre.engine.script import Reply, Turn

STEPS = 40


def _steps(tool: str, command: str, others: dict[str, Any], loud: int = 0) -> Callable[[Turn], Reply | str]:
    """`loud`: the step whose output is long."""

    def answer(turn: Turn) -> Reply | str:
        done = max((int(number) for number in re.findall(r"step-(\d+)", turn.text)), default=0)
        if "TEXT ONLY" in turn.last:
            return f"<summary>Everything up to step-{done} is done.</summary>"
        if "<tools>" not in turn.text:
            return f"Everything up to step-{done} is done."
        if done == STEPS:
            return "Done."
        words = f"echo step-{done + 1} | tee -a log.txt" + ("; seq 400" if done + 1 == loud else "")
        return Reply(calls=({"name": tool, "arguments": {command: words, **others}},))

    return answer


claude_code = _steps("Bash", "command", {"description": "Go on"})
codex = _steps("exec_command", "cmd", {})
opencode = _steps("bash", "command", {"description": "Go on"})
pi = _steps("bash", "command", {}, loud=20)
qwen_code = _steps("run_shell_command", "command", {"is_background": False})
