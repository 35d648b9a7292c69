"""The shell harness against a scripted model: from inside a box, through the forwarder, over the unix socket."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qwengyre.errors import ConfigError
from qwengyre.execution.harnesses.build import build
from qwengyre.execution.harnesses.shell import ShellHarness
from qwengyre.execution.runner import Runner
from qwengyre.types import Ending, Query

Act = Callable[..., Any]


@pytest.fixture
def act(runner: Callable[..., Runner], serve: Callable[..., Path], task: Callable[..., Query], not_queued: Any) -> Act:
    """Run one execution; returns (ending, requests to the model, the log's JSON lines, the workspace's files)."""

    async def run(harness: ShellHarness, replies: list[tuple[Any, str]], **changes: Any) -> tuple[Any, ...]:
        query = task("true\n", files={"data.txt": "1\n2\n"}, **changes)
        script, socket = serve(replies)
        made = runner(harness)
        ending = await made.run("0-0", query, token="tok-1", socket=socket, queued_s=not_queued)
        await made.freeze("0-0", query)
        folder = made._folder / "0-0"
        lines = [json.loads(line) for line in (folder / "harness.log").read_text().splitlines()]
        files = {path.name: path.read_text() for path in (folder / "work").iterdir() if path.is_file()}
        return ending, script, lines, files

    return run


def bash(command: str) -> str:
    return f"Sure:\n```bash\n{command}\n```\n"


def errors(script: Any) -> list[str]:
    """What the agent said after each failed turn, as the last request shows it."""
    return [m["content"] for m in script.requests[-1]["messages"][4:] if m["role"] == "user"]


async def test_the_first_block_is_run_and_success_ends_it(act: Act) -> None:
    ending, script, lines, files = await act(
        ShellHarness(), [(bash("echo hi > made; pwd; id -u") + bash("rm made"), "stop")]
    )
    assert ending is Ending.FINISHED
    assert files == {"data.txt": "1\n2\n", "made": "hi\n"}
    assert script.paths == ["/x/tok-1/v1/chat/completions"]
    assert script.keys == ["Bearer tok-1"]
    assert script.requests == [
        {
            "model": "policy",
            "messages": [
                {"role": "system", "content": "Answer with one bash command in a fenced block."},
                {"role": "user", "content": "List the files."},
                {"role": "assistant", "content": "```bash\nls\n```"},
                {"role": "user", "content": "Do it."},
            ],
        }
    ]
    assert [next(k for k in line if k != "at") for line in lines] == ["request", "answer", "command"]
    assert lines[0]["request"] == script.requests[0]
    assert lines[2]["command"]["output"] == "/app\n1000\n"


async def test_the_example_is_a_knob(act: Act) -> None:
    example = ["List the files. Then print the date.", "ls\ndate"]
    _, script, _, _ = await act(ShellHarness(example=example), [(bash("true"), "stop")])
    assert [m["content"] for m in script.requests[0]["messages"][1:3]] == [example[0], "```bash\nls\ndate\n```"]


@pytest.mark.parametrize(
    ("reply", "finish", "error"),
    [
        ("No block here.", "stop", "no bash block."),
        (bash("touch cut"), "length", "the answer is too long."),
        (bash("ls /none"), "stop", "ls: cannot access '/none': No such file or directory"),
        (bash("exit 3"), "stop", "exit code 3"),
        (bash("echo " + "x" * 100 + "; false"), "stop", "x" * 60),
        ("```python\nprint(1)\n```", "stop", "no bash block."),
    ],
)
async def test_a_failed_turn_is_told_and_tried_once_more(act: Act, reply: str, finish: str, error: str) -> None:
    ending, script, _, files = await act(ShellHarness(), [(reply, finish), (bash("touch made"), "stop")])
    assert ending is Ending.FINISHED
    assert len(script.requests) == 2
    assert script.requests[1]["messages"][4] == {"role": "assistant", "content": reply}
    assert errors(script) == [f"Error: {error}\nTry again."]
    assert set(files) == {"data.txt", "made"}  # a cut reply is not run


async def test_turns_end(act: Act) -> None:
    ending, script, _, _ = await act(ShellHarness(), [("no", "stop")])
    assert (ending, len(script.requests)) == (Ending.FINISHED, 2)
    _, script, _, _ = await act(ShellHarness(max_turns=4), [("no", "stop")])
    assert len(script.requests) == 4


async def test_commands_have_a_limit_no_input_and_no_key(act: Act) -> None:
    stubborn = "cat; env; trap '' TERM; (sleep 77 &) ; echo begun; sleep 77"
    replies = [(bash(stubborn), "stop"), (bash("echo over"), "stop")]
    ending, script, lines, _ = await act(ShellHarness(command_timeout_s=0.5), replies)
    assert ending is Ending.FINISHED
    command = lines[2]["command"]
    assert command["code"] == 124
    assert command["output"].endswith("begun\n\ntimed out after 0.5 s")
    assert "tok-1" not in command["output"]
    assert len(script.requests) == 2


async def test_answer_writes_the_reply(act: Act) -> None:
    reply = "caf\u00e9 \U0001f600\nline {x}"
    ending, script, _, files = await act(ShellHarness(style="answer"), [(reply, "length")])
    assert (ending, files["answer.txt"]) == (Ending.FINISHED, reply)
    assert script.requests == [{"model": "policy", "messages": [{"role": "user", "content": "Do it."}]}]


def calls(*commands: Any) -> dict[str, Any]:
    made = [
        {"id": f"call_{n}", "type": "function", "function": {"name": "bash", "arguments": json.dumps({"command": c})}}
        for n, c in enumerate(commands)
    ]
    return {"role": "assistant", "content": None, "tool_calls": made}


async def test_tools_loops_until_there_is_no_call(act: Act) -> None:
    wrong = calls("x")
    wrong["tool_calls"][0]["function"]["arguments"] = "{"
    replies = [(calls("wc -l < data.txt", "exit 5"), "tool_calls"), (wrong, "tool_calls"), ("Done.", "stop")]
    ending, script, _, _ = await act(ShellHarness(style="tools"), replies)
    assert (ending, len(script.requests)) == (Ending.FINISHED, 3)
    assert script.requests[0]["tools"][0]["function"]["name"] == "bash"
    messages = script.requests[2]["messages"]
    assert messages[1] == calls("wc -l < data.txt", "exit 5")
    assert messages[2:4] == [
        {"role": "tool", "tool_call_id": "call_0", "content": "2\n"},
        {"role": "tool", "tool_call_id": "call_1", "content": "\nexit code 5"},
    ]
    assert messages[5]["content"].startswith("Error: expected a JSON object")
    _, script, _, _ = await act(ShellHarness(style="tools", max_turns=2), [(calls("true"), "tool_calls")])
    assert len(script.requests) == 2


async def test_an_instruction_longer_than_an_argument_can_be(act: Act) -> None:
    text = "word " * 60000
    _, script, _, _ = await act(ShellHarness(style="answer"), [("ok", "stop")], instruction=text)
    assert script.requests[0]["messages"][0]["content"] == text


async def test_an_http_error_is_a_crash_with_a_reason_in_the_log(act: Act) -> None:
    ending, _, lines, _ = await act(ShellHarness(), [(409, "")])
    assert ending is Ending.HARNESS_CRASH
    assert lines[-1]["error"].startswith("HTTP 409")


def test_args_are_checked() -> None:
    assert isinstance(build("shell", args={"style": "tools", "max_turns": 3}), ShellHarness)
    with pytest.raises(ConfigError, match=r"unknown key 'harness.args.max_turn': did you mean 'max_turns'\?"):
        build("shell", args={"max_turn": 3})
    with pytest.raises(ConfigError, match=r"harness.args.style='blok' is unknown: did you mean 'block'\?"):
        build("shell", args={"style": "blok"})
    for args in (
        {"max_turns": -1},
        {"max_turns": True},
        {"max_turns": 1.5},
        {"command_timeout_s": 0},
        {"example": ["ls"]},
        {"example": [1, 2]},
    ):
        with pytest.raises(ConfigError, match="expected"):
            build("shell", args=args)
    with pytest.raises(ConfigError, match=r"harness.kind='shel' is unknown: did you mean 'shell'\?"):
        build("shel")
    with pytest.raises(ConfigError, match="cannot be imported"):
        build("no.such:Thing")
