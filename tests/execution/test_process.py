"""The sandbox without isolation: it says so, and whole executions work in it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from qwengyre.errors import MachineError
from qwengyre.execution.harnesses.shell import ShellHarness
from qwengyre.execution.runner import Runner
from qwengyre.execution.sandboxes.base import BoxSpec
from qwengyre.execution.sandboxes.build import build, check_images
from qwengyre.execution.sandboxes.process import ProcessSandbox
from qwengyre.execution.tasksets.build import build as build_tasks
from qwengyre.types import Ending, Limits, Verdict


def test_warns(tmp_path: Path) -> None:
    found = build("process", run_id="p", scratch=tmp_path).check()
    assert "does not isolate" in found.warning
    assert found.network == "none enforced"


async def test_a_whole_execution(
    runner: Callable[..., Runner], serve: Any, limits: Limits, not_queued: Any, tmp_path: Path
) -> None:
    tasks = build_tasks("quickstart", path="", count=5, split="train", seed=0, folder=tmp_path / "t", limits=limits)
    query = tasks[2]
    (case,) = json.loads(Path(query.tests, "case.json").read_text())["parts"]  # noqa: ASYNC240
    script, socket = serve([(f"```bash\ncp {case['old']} {case['new'][0]}\n```", "stop")])
    made = runner(ShellHarness(), sandbox=ProcessSandbox(run_id="proc", scratch=tmp_path / "scratch"))
    ending = await made.run("0-0", query, token="tok", socket=socket, queued_s=not_queued)
    settled = await made.settle("0-0", query, ending)
    assert (ending, settled.verdict, settled.score) == (Ending.FINISHED, Verdict.SCORED, 1.0)
    assert script.paths == ["/x/tok/v1/chat/completions"]


async def test_a_control_group_holds_what_sheds_session_and_marker(tmp_path: Path, limits: Limits) -> None:
    (tmp_path / "w").mkdir()
    sandbox = ProcessSandbox(run_id="shed", scratch=tmp_path)
    async with sandbox.open(BoxSpec("0-0", "host", "/app", tmp_path / "w", limits)) as box:
        line = "env -i setsid sleep 61616 & while ! pgrep -f 'sleep 6161[6]'; do :; done"
        assert (await box.run(["bash", "-c", line], log=tmp_path / "log")).code == 0
        assert not [p for p in psutil.process_iter(["cmdline", "status"]) if asleep(p)]


def asleep(process: psutil.Process) -> bool:
    return "61616" in (process.info["cmdline"] or ()) and process.info["status"] != psutil.STATUS_ZOMBIE


async def test_root_folders_are_refused(tmp_path: Path, limits: Limits) -> None:
    sandbox = ProcessSandbox(run_id="p", scratch=tmp_path)
    with pytest.raises(MachineError, match="cannot use the root folder /some/root"):
        async with sandbox.open(BoxSpec("0-0", "/some/root", "/app", tmp_path, limits)):
            pass


def test_images_are_checked(tmp_path: Path) -> None:
    (tmp_path / "usr").mkdir()
    check_images({"a": "host", "b": str(tmp_path)})
    for root in ("docker", str(tmp_path / "none"), "usr"):
        with pytest.raises(MachineError, match=r"sandbox\.images: 'a' is mapped to"):
            check_images({"a": root})
