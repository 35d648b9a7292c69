"""Scripts for the scripted engine that go on whatever the harness forgets meanwhile: the number of the last step stands
in every context, in a command, its output, or the summary that the script gives where one is asked for.

    engine.args.script = "<this file>:claude_code_40"     forty steps, a shell command each
    engine.args.script = "<this file>:claude_code_story"  five steps of a quickstart task, of which one is a sub-agent's
                                                          and one is loud, so that a compaction follows

It is read in the process of an engine, where nothing else of these tests is at hand.
"""

import json
import re
from collections.abc import Callable
from typing import Any

from qwengyre.engine.script import Reply, Turn

SHELLS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "claude-code": ("Bash", "command", {"description": "Go on"}),
    "codex": ("exec_command", "cmd", {}),
    "mini-swe-agent": ("bash", "command", {}),
    "opencode": ("bash", "command", {"description": "Go on"}),
    "pi": ("bash", "command", {}),
    "qwen-code": ("run_shell_command", "command", {"is_background": False}),
}
"""Harness -> its shell tool, the argument that holds the command, and the others that it needs."""
_BACKGROUND = {"description": "Look", "subagent_type": "general-purpose", "run_in_background": False}
AGENTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "claude-code": ("Agent", "prompt", _BACKGROUND),
    "codex": ("multi_agent_v1.spawn_agent", "message", {}),
    "opencode": ("task", "prompt", {"description": "Look", "subagent_type": "general"}),
    "qwen-code": ("agent", "prompt", _BACKGROUND),
}
"""Harness -> the tool that starts a sub-agent, the argument that holds its task, and the others that it needs."""
LOUD = {"pi": 20}
"""Harness -> the step whose output is long, where small ones never fill its window."""
LINES = {"qwen-code": 1200}
"""Harness -> lines of the loud step of a story, by default 2500 (10,000 tokens). It must not look too long before the
model has counted it: the compaction would keep it."""

_Answer = Callable[[Turn], Reply | str]


def __getattr__(name: str) -> _Answer:
    kind, _, what = name.rpartition("_")
    kind = kind.replace("_", "-")
    if kind not in SHELLS:
        raise AttributeError(name)
    return _story(kind) if what == "story" else _steps(kind, int(what))


def _steps(kind: str, steps: int) -> _Answer:
    def answer(turn: Turn) -> Reply | str:
        done = _done(turn)
        if (summary := _summary(turn, f"Everything up to step-{done} is done.")) is not None:
            return summary
        if done == steps:
            return _last(kind)
        loud = "; seq 400" if done + 1 == LOUD.get(kind) else ""
        said = {"think": "One more.", "text": "I go on."} if done < 2 else {}
        return _shell(kind, f"echo step-{done + 1} | tee -a log.txt{loud}", **said)

    return answer


def _story(kind: str) -> _Answer:
    """Execution 0-0 does the task, the others make a folder too many."""

    def answer(turn: Turn) -> Reply | str:
        done = _done(turn)
        if "title generator" in turn.system[:2000].lower():
            return "A folder"
        if "\nSUBTASK: " in turn.text:
            return _shell(kind, "ls -la") if turn.turns == 0 else "I have looked around."
        if (summary := _summary(turn, f"Everything up to step-{done} is done.")) is not None:
            return summary
        if (agent := re.search(r'"agent_id": ?"([^"]+)"', turn.last)) is not None:
            return _call("multi_agent_v1.wait_agent", {"targets": [agent[1]]})
        return _chapter(kind, turn, done + 1)

    return answer


def _chapter(kind: str, turn: Turn, step: int) -> Reply | str:
    if step == 1:
        name = re.search(r"Create a folder named (\w+)\.", turn.text)
        assert name is not None
        more = "" if turn.execution.endswith("-0") else " another"
        return _shell(kind, f"mkdir {name[1]}{more}; echo step-1", think="A folder.", text="I make it.")
    if step == 2:
        tool, argument, others = AGENTS[kind]
        return _call(tool, {argument: "SUBTASK: look around; this is step-2.", **others})
    if step == 3:
        return _shell(kind, f"seq {LINES.get(kind, 2500)}; echo step-3")
    return _shell(kind, f"echo step-{step}") if step <= 5 else _last(kind)


def _done(turn: Turn) -> int:
    return max((int(number) for number in re.findall(r"step-(\d+)", turn.text)), default=0)


def _summary(turn: Turn, text: str) -> str | None:
    """What a request for a summary is answered with."""
    if "state_snapshot" in turn.last:
        return f"<state_snapshot>{text}</state_snapshot>"
    if "TEXT ONLY" in turn.last:
        return f"<summary>{text}</summary>"
    return text if "<tools>" not in turn.text else None


def _last(kind: str) -> Reply | str:
    if kind == "mini-swe-agent":
        return _shell(kind, "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
    return "Done."


def _shell(kind: str, words: str, **said: str) -> Reply:
    tool, argument, others = SHELLS[kind]
    return _call(tool, {argument: words, **others}, **said)


def _call(name: str, arguments: dict[str, Any], **said: str) -> Reply:
    return Reply(calls=({"name": name, "arguments": json.dumps(arguments)},), **said)
