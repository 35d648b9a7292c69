"""What every sandbox must do, ours and yours.

To run it over your own: QWENGYRE_SANDBOX=package.module:Class pytest tests/contract/test_sandbox.py
"""

import asyncio
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from qwengyre.execution.sandboxes.base import BoxSpec, Sandbox
from qwengyre.execution.sandboxes.build import build
from qwengyre.types import Limits

KINDS = [os.environ["QWENGYRE_SANDBOX"]] if "QWENGYRE_SANDBOX" in os.environ else ["bwrap", "process"]
LIMITS = Limits(agent_s=30, overall_s=60, verifier_s=20, memory_mb=128, pids=32, disk_mb=8)


@pytest.fixture(params=KINDS)
def sandbox(request: pytest.FixtureRequest, tmp_path: Path) -> Sandbox:
    return build(request.param, run_id=f"contract{os.getpid()}", scratch=tmp_path / "scratch")


@pytest.fixture
def spec(tmp_path: Path) -> Callable[..., BoxSpec]:
    def make(name: str = "1-0", **changes: object) -> BoxSpec:
        workspace = tmp_path / name
        workspace.mkdir(exist_ok=True)
        made = BoxSpec(name=name, root="host", workdir="/app", workspace=workspace, limits=LIMITS)
        return replace(made, **changes)

    return make


def marked(mark: str) -> list[int]:
    """Processes alive on this machine whose command line holds `mark`."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if process.info["status"] != psutil.STATUS_ZOMBIE and any(mark in w for w in process.info["cmdline"] or ()):
            found.append(process.pid)
    return found


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what a process is about to do; the test's own limit ends it."""
    while not condition():
        await asyncio.sleep(0.02)


def test_check_says_what_is_enforced(sandbox: Sandbox) -> None:
    found = sandbox.check()
    assert all((found.memory, found.pids, found.disk, found.time, found.network))
    assert bool(found.warning) == (found.sandbox == "process")


async def test_runs_in_the_workdir_with_empty_input_and_appends_to_the_log(
    sandbox: Sandbox, spec: Callable[..., BoxSpec], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    async with sandbox.open(spec()) as box:
        first = await box.run(["bash", "-c", "cat; echo $WORD; echo made > here"], log=log, env={"WORD": "one"})
        second = await box.run(["bash", "-c", "echo two >&2; exit 7"], log=log)
    assert (first.code, second.code) == (0, 7)
    assert log.read_text() == "one\ntwo\n"
    assert (tmp_path / "1-0" / "here").read_text() == "made\n"


async def test_environment_is_clean(
    sandbox: Sandbox, spec: Callable[..., BoxSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET_OF_THE_HOST", "leaked")
    log = tmp_path / "log"
    async with sandbox.open(spec(env={"GIVEN": "yes"})) as box:
        await box.run(["env"], log=log)
    text = log.read_text()
    assert "leaked" not in text
    assert "GIVEN=yes" in text


async def test_binds_are_readable_and_writable_as_asked(
    sandbox: Sandbox, spec: Callable[..., BoxSpec], tmp_path: Path
) -> None:
    for name in ("given", "out"):
        (tmp_path / name).mkdir()
    (tmp_path / "given" / "word").write_text("given\n")
    made = spec(read_only={"/given": str(tmp_path / "given")}, writable={"/out": str(tmp_path / "out")})
    async with sandbox.open(made) as box:
        end = await box.run(["cp", box.path("/given/word"), box.path("/out")], log=tmp_path / "log")
    assert end.code == 0
    assert (tmp_path / "out" / "word").read_text() == "given\n"


async def test_a_missing_command_is_an_exit_code_not_a_failed_sandbox(
    sandbox: Sandbox, spec: Callable[..., BoxSpec], tmp_path: Path, silent: Path
) -> None:
    async with sandbox.open(spec(socket=silent)) as box:
        end = await box.run(["no-such-command"], log=tmp_path / "log")
    assert end.code == 126
    assert not end.failed
    assert "no-such-command" in (tmp_path / "log").read_text()


async def test_time_ends_everything(sandbox: Sandbox, spec: Callable[..., BoxSpec], tmp_path: Path) -> None:
    async with sandbox.open(spec()) as box:
        end = await box.run(["bash", "-c", STUBBORN.format(mark="31417")], log=tmp_path / "log", timeout_s=1)
        assert end.timed_out
        assert not marked("0.31417")
        assert (await box.run(["true"], log=tmp_path / "log")).code == 0  # the box itself goes on


STUBBORN = """
trap '' TERM INT HUP
setsid bash -c 'trap "" TERM; while :; do sleep 0.{mark}; done' &
nohup bash -c 'while :; do sleep 0.{mark}; done' > /dev/null 2>&1 &
(bash -c 'while :; do sleep 0.{mark}; done' &) &
touch started
while :; do sleep 0.{mark}; done
"""
"""Children in sessions of their own, orphans, and none that minds a signal."""


async def test_stop_leaves_nothing(sandbox: Sandbox, spec: Callable[..., BoxSpec], tmp_path: Path) -> None:
    async with sandbox.open(spec()) as box:
        job = asyncio.ensure_future(box.run(["bash", "-c", STUBBORN.format(mark="71417")], log=tmp_path / "log"))
        await until(lambda: (tmp_path / "1-0" / "started").exists() and len(marked("0.71417")) >= 4)
        await box.stop()
        assert (await job).stopped
        assert not marked("0.71417")
        assert (await box.run(["true"], log=tmp_path / "log")).stopped


async def test_what_a_finished_command_left_running_is_dead(
    sandbox: Sandbox, spec: Callable[..., BoxSpec], tmp_path: Path
) -> None:
    async with sandbox.open(spec()) as box:
        line = "setsid nohup sleep 86217 > /dev/null 2>&1 & echo over"
        assert (await box.run(["bash", "-c", line], log=tmp_path / "log")).code == 0
        assert not marked("86217")


async def test_memory_limit(sandbox: Sandbox, spec: Callable[..., BoxSpec], tmp_path: Path) -> None:
    async with sandbox.open(spec()) as box:
        end = await box.run(["python3", "-c", "x = bytearray(300 << 20)"], log=tmp_path / "log")
        calm = await box.run(["true"], log=tmp_path / "log")
    assert end.code != 0
    assert end.out_of_memory or "MemoryError" in (tmp_path / "log").read_text()
    assert not calm.out_of_memory


async def test_pids_limit(sandbox: Sandbox, spec: Callable[..., BoxSpec], tmp_path: Path) -> None:
    if sandbox.check().pids == "none":
        pytest.fail("this machine limits no pids: run the tests where a pids cgroup can be made")
    line = "import os, time\nn = 0\nwhile n < 60:\n    if os.fork() == 0: time.sleep(30)\n    n += 1\n    print(n)"
    async with sandbox.open(spec()) as box:
        end = await box.run(["python3", "-c", line], log=tmp_path / "log")
    assert end.code != 0
    text = (tmp_path / "log").read_text()
    assert "BlockingIOError" in text
    assert "\n60\n" not in text


async def test_disk_limits(sandbox: Sandbox, spec: Callable[..., BoxSpec], tmp_path: Path) -> None:
    async with sandbox.open(spec("one")) as box:
        one = await box.run(["dd", "if=/dev/zero", "of=big", "bs=1M", "count=64"], log=tmp_path / "log")
    assert one.over_disk
    assert (tmp_path / "one" / "big").stat().st_size <= 8 << 20
    async with sandbox.open(spec("many")) as box:
        line = "for i in 1 2 3 4; do dd if=/dev/zero of=f$i bs=1M count=3; done; sleep 60"
        many = await box.run(["bash", "-c", line], log=tmp_path / "log")
    assert many.over_disk


async def test_failed_start_is_told_from_a_failed_command(
    sandbox: Sandbox, spec: Callable[..., BoxSpec], tmp_path: Path
) -> None:
    made = spec(workspace=tmp_path / "absent")
    async with sandbox.open(made) as box:
        try:
            end = await box.run(["true"], log=tmp_path / "log")
        except OSError as error:
            assert "absent" in str(error)  # noqa: PT017  (either way of telling is fine)
        else:
            assert "absent" in end.failed


@pytest.mark.parametrize("where", ["argv", "env", "spec"])
async def test_a_nul_byte_starts_nothing(
    sandbox: Sandbox, spec: Callable[..., BoxSpec], tmp_path: Path, where: str
) -> None:
    """It separates the words that a sandbox may be driven by: a value must not become options."""
    bad = "x\0--bind\0/\0/host"
    async with sandbox.open(spec(env={"A": bad} if where == "spec" else {})) as box:
        argv, env = ["echo", bad if where == "argv" else "fine"], {"A": bad} if where == "env" else {}
        with pytest.raises(OSError, match="NUL"):
            await box.run(argv, env=env, log=tmp_path / "log")


async def test_reaches_the_gateway_and_a_restarted_one(
    sandbox: Sandbox, spec: Callable[..., BoxSpec], tmp_path: Path
) -> None:
    folder = tmp_path / "gateway"
    folder.mkdir()
    ask = (
        "import pathlib, socket, sys, time; from urllib.parse import urlsplit\n"
        "at = urlsplit(sys.argv[1])\n"
        "for word in (b'one', b'two'):\n"
        "    while not pathlib.Path('go-' + word.decode()).exists(): time.sleep(0.01)\n"
        "    with socket.create_connection((at.hostname, at.port)) as door:\n"
        "        pathlib.Path('asked-' + word.decode()).touch()\n"
        "        door.sendall(word); door.shutdown(socket.SHUT_WR); print(door.recv(99).decode(), flush=True)\n"
    )
    async with sandbox.open(spec(socket=folder / "gateway.sock")) as box:
        job = asyncio.ensure_future(box.run(["python3", "-c", ask, box.url], log=tmp_path / "log"))
        for name, word in (("first", "one"), ("second", "two")):
            over = asyncio.Event()
            (tmp_path / "1-0" / f"go-{word}").touch()  # no earlier: the last gateway is gone
            await until((tmp_path / "1-0" / f"asked-{word}").exists)  # it waits for a gateway that is not there yet

            async def answer(
                reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str = name, over: asyncio.Event = over
            ) -> None:
                writer.write(name.encode() + b" " + await reader.read())
                writer.close()
                over.set()

            server = await asyncio.start_unix_server(answer, folder / "gateway.sock")
            await over.wait()
            server.close()
            (folder / "gateway.sock").unlink(missing_ok=True)
        assert (await job).code == 0
    assert (tmp_path / "log").read_text() == "first one\nsecond two\n"


@pytest.fixture
def silent(tmp_path: Path) -> Path:
    """A folder for a socket that nobody serves."""
    (tmp_path / "silent").mkdir()
    return tmp_path / "silent" / "gateway.sock"


def test_works_in_a_loop_of_another_thread(sandbox: Sandbox, spec: Callable[..., BoxSpec], tmp_path: Path) -> None:
    made, codes = spec(), []

    async def story() -> None:
        async with sandbox.open(made) as box:
            codes.append((await box.run(["bash", "-c", "exit 5"], log=tmp_path / "log")).code)

    thread = threading.Thread(target=lambda: asyncio.run(story()))
    thread.start()
    thread.join()
    assert codes == [5]


async def test_many_at_once(sandbox: Sandbox, spec: Callable[..., BoxSpec], tmp_path: Path) -> None:
    async def one(number: int) -> int:
        async with sandbox.open(spec(f"2-{number}")) as box:
            return (await box.run(["bash", "-c", f"echo {number} > n; exit {number}"], log=tmp_path / f"{number}")).code

    assert await asyncio.gather(*(one(n) for n in range(12))) == list(range(12))
    assert [(tmp_path / f"2-{n}" / "n").read_text().strip() for n in range(12)] == [str(n) for n in range(12)]
