"""The command template: ten lines of TOML make any program a harness."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qwengyre.errors import ConfigError, MachineError
from qwengyre.execution.harnesses.base import Door
from qwengyre.execution.harnesses.build import build
from qwengyre.execution.harnesses.command import CommandHarness
from qwengyre.execution.runner import Runner
from qwengyre.types import Ending, Query

DOOR = Door("http://127.0.0.1:8080/x/tok/v1", "tok", "policy", "/app")
AGENT = """
import json, os, pathlib, sys, urllib.request
settings = json.loads((pathlib.Path.home() / ".agent" / "settings.json").read_text())
body = {"model": settings["model"], "messages": [{"role": "user", "content": sys.argv[1]}]}
request = urllib.request.Request(settings["url"] + "/chat/completions", json.dumps(body).encode(),
                                 {"Authorization": "Bearer " + os.environ["KEY"]})
reply = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
pathlib.Path("out.txt").write_text(os.getcwd() + " " + reply)
"""


async def test_a_users_own_harness(
    runner: Callable[..., Runner], serve: Any, task: Callable[..., Query], not_queued: Any, tmp_path: Path
) -> None:
    tool = tmp_path / "opt" / "agent"
    tool.mkdir(parents=True)
    (tool / "agent.py").write_text(AGENT)
    toml = f"""
        kind = "command"
        command = ["python3", "{tool}/agent.py", "{{instruction}}"]
        env = {{KEY = "{{api_key}}"}}
        mounts = ["{tool}"]
        [files]
        "~/.agent/settings.json" = '{{"url": "{{base_url}}", "model": "{{model}}", "kept": "{{other}}"}}'
    """
    values = tomllib.loads(toml)
    script, socket = serve([("hello", "stop")])
    made = runner(build(values.pop("kind"), **values))
    query = task("true\n", instruction="Say {model}; $(rm -rf /) 'quoted'\nline")
    assert await made.run("0-0", query, token="tok", socket=socket, queued_s=not_queued) is Ending.FINISHED
    await made.freeze("0-0", query)
    work = tmp_path / "executions" / "0-0" / "work"
    assert (work / "out.txt").read_text() == "/app hello"
    assert [path.name for path in work.iterdir()] == ["out.txt"]  # its settings stay out of the work product
    assert script.paths == ["/x/tok/v1/chat/completions"]
    assert script.keys == ["Bearer tok"]
    assert script.requests[0] == {"model": "policy", "messages": [{"role": "user", "content": query.instruction}]}


def test_values_are_put_in_once(task: Callable[..., Query]) -> None:
    harness = CommandHarness(["a", "{instruction}:{workdir}", "{}", "{X}"], env={"E": "{model}"}, files={"f": "{json}"})
    launch = harness.launch(task("true", instruction="{api_key}"), DOOR)
    assert launch.argv == ("a", "{api_key}:/app", "{}", "{X}")
    assert (launch.env, launch.files) == ({"E": "policy"}, {"f": "{json}"})


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"command": []}, ConfigError, "needs harness.command"),
        (
            {"command": ["a", "{base_ur}"]},
            ConfigError,
            r"'\{base_ur\}' in '\{base_ur\}' is unknown: did you mean 'base_url'",
        ),
        ({"command": ["a"], "env": {"X": "{key}"}}, ConfigError, r"'\{key\}'"),
        ({"command": ["a"], "files": {"/etc/x": ""}}, ConfigError, "below the agent's home"),
        ({"command": ["a"], "files": {"~/../x": ""}}, ConfigError, "below the agent's home"),
        ({"command": ["a"], "mounts": ["/none/such"]}, MachineError, "harness.mounts: '/none/such'"),
        ({"command": ["a"], "mounts": ["usr"]}, MachineError, "absolute path"),
    ],
)
def test_mistakes_are_one_line(values: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        build("command", **values)
    assert "\n" not in str(caught.value)
