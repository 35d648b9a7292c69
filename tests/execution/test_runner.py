"""One execution, start to settlement, with real harness processes and verifiers in real boxes."""

import asyncio
import errno
import json
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qwengyre.errors import RunError
from qwengyre.execution import freeze as freezing
from qwengyre.execution.harnesses.command import CommandHarness
from qwengyre.execution.runner import Runner
from qwengyre.execution.verifiers.base import Grade
from qwengyre.execution.verifiers.options import Options
from qwengyre.execution.workplace import Workplace
from qwengyre.types import Ending, Query, Settlement, Verdict

Make = Callable[..., Runner]
Task = Callable[..., Query]
WORD = """#!/bin/bash
test "$(cat /app/answer 2> /dev/null)" = yes && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
"""


def bash(line: str) -> CommandHarness:
    return CommandHarness(["bash", "-c", line])


@pytest.fixture
def execute(runner: Make, gateway: Path, not_queued: Any) -> Callable[..., Any]:
    """Run and settle execution 0-0; returns (ending, settlement)."""

    async def run(line: str, query: Query, queued_s: Any = not_queued, **changes: Any) -> tuple[Ending, Settlement]:
        made = runner(bash(line), **changes)
        ending = await made.run("0-0", query, token="tok", socket=gateway, queued_s=queued_s)
        return ending, await made.settle("0-0", query, ending)

    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "executions" / "0-0"


def notes(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


async def test_finished(execute: Any, task: Task, folder: Path, tmp_path: Path) -> None:
    query = task(WORD, files={"given.txt": "old\n"})
    ending, settled = await execute("cat given.txt; echo yes > answer; echo new > given.txt", query)
    assert ending is Ending.FINISHED
    assert (settled.verdict, settled.score, settled.reason) == (Verdict.SCORED, 1.0, "")
    assert settled.work == notes(folder, "frozen.json")["hash"]
    assert (folder / "harness.log").read_text() == "old\n"
    assert (folder / "diff").read_text() == (
        "--- /dev/null\n+++ b/answer\n@@ -0,0 +1 @@\n+yes\n--- a/given.txt\n+++ b/given.txt\n@@ -1 +1 @@\n-old\n+new\n"
    )
    assert (folder / "work" / "answer").read_text() == "yes\n"
    grade = notes(folder, "verifier/0/grade.json")
    assert (grade["score"], grade["work"]) == (1.0, settled.work)
    assert sorted(path.name for path in (tmp_path / "scratch").iterdir()) == ["etc"]  # nothing else is left there


async def test_a_crash_is_scored_by_what_it_left(execute: Any, task: Task, folder: Path) -> None:
    ending, settled = await execute("echo yes > answer; exit 3", task(WORD))
    assert (ending, settled.verdict, settled.score) == (Ending.HARNESS_CRASH, Verdict.SCORED, 1.0)
    assert notes(folder, "ending.json")["reason"] == "exit code 3"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("echo yes > answer; python3 -c 'bytearray(900 << 20)'; exit $?", "killed for memory above 256 MB"),
        ("echo yes > answer; dd if=/dev/zero of=big bs=1M count=99; sleep 60", "wrote more than 32 MB"),
        ("echo yes > answer; kill -KILL $$", "exit code 137"),
    ],
)
async def test_limits_that_end_a_harness_are_scored(
    execute: Any, task: Task, folder: Path, line: str, reason: str
) -> None:
    ending, settled = await execute(line, task(WORD))
    assert (ending, settled.verdict, settled.score) == (Ending.HARNESS_CRASH, Verdict.SCORED, 1.0)
    assert reason in notes(folder, "ending.json")["reason"]


async def test_a_time_out_is_scored_and_leaves_nothing(execute: Any, task: Task, folder: Path) -> None:
    query = task(WORD)
    line = "echo yes > answer; trap '' TERM; setsid nohup sleep 31313 & sleep 31313"
    ending, settled = await execute(line, replace(query, limits=replace(query.limits, agent_s=2)))
    assert (ending, settled.verdict, settled.score) == (Ending.HARNESS_TIMEOUT, Verdict.SCORED, 1.0)
    assert notes(folder, "ending.json")["reason"] == "active for more than 2 s"
    assert "sleep 31313" not in processes()


def processes() -> str:
    words = ["ps", "axww", "-o", "stat,args"]
    lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    return "\n".join(line for line in lines if not line.startswith("Z"))


async def test_queued_time_does_not_count(execute: Any, task: Task) -> None:
    """Active for 1 s in all, but queued for 2 s by the time that it is asked: the harness ends by itself."""
    asked: list[float] = []

    async def queued() -> float:
        asked.append(2.0)
        return 2.0

    query = task(WORD)
    line = "sleep 1.5; echo yes > answer"
    limited = replace(query, limits=replace(query.limits, agent_s=1))
    ending, settled = await execute(line, limited, queued)
    assert (ending, settled.score, bool(asked)) == (Ending.FINISHED, 1.0, True)
    ending, settled = await execute(line, limited)
    assert (ending, settled.score) == (Ending.HARNESS_TIMEOUT, 0.0)


async def test_overall_time_out_is_dropped_however_long_it_was_queued(execute: Any, task: Task) -> None:
    async def queued() -> float:
        return 1e9

    query = task(WORD)
    limits = replace(query.limits, agent_s=0.3, overall_s=1)
    ending, settled = await execute("echo yes > answer; sleep 60", replace(query, limits=limits), queued)
    assert ending is Ending.OVERALL_TIMEOUT
    assert settled == Settlement(Verdict.DROPPED, reason="overall time-out")


async def test_an_unmapped_image_is_a_placeholder(execute: Any, task: Task) -> None:
    ending, settled = await execute("true", task(WORD, image="some/image:1"))
    assert ending is Ending.NOTHING_TO_ASSESS
    assert (settled.verdict, settled.score) == (Verdict.PLACEHOLDER, 0.0)
    assert "image 'some/image:1' is not in [sandbox.images]" in settled.reason
    ending, _ = await execute("true", task(WORD, image="some/image:1"), images={"some/image:1": "host"})
    assert ending is Ending.FINISHED


async def test_a_sandbox_that_fails_is_lost(execute: Any, task: Task, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "usr").mkdir(parents=True)  # no shell in it, nothing
    ending, settled = await execute("true", task(WORD, image="x"), images={"x": str(root)})
    assert (ending, settled.verdict) == (Ending.LOST, Verdict.DROPPED)
    assert "the sandbox ended without its command's exit code" in settled.reason


@pytest.mark.parametrize(
    ("grade", "reason"),
    [
        ("#!/bin/bash\nexit 3\n", "neither reward.json nor reward.txt"),
        ("#!/bin/bash\nkill -KILL $$\n", "neither reward.json nor reward.txt"),
        ("#!/bin/bash\necho 1.5 > /logs/verifier/reward.txt\n", "not a number in [0, 1]"),
        ("#!/bin/bash\necho -1 > /logs/verifier/reward.txt\n", "not a number in [0, 1]"),
        ("#!/bin/bash\necho 100 passed; exit 0\n", "neither reward.json nor reward.txt"),
        ("#!/no/such/interpreter\n", "/tests/test.sh"),
        ("#!/bin/bash\npython3 -c 'bytearray(900 << 20)'\n", "killed for memory above 256 MB"),
        ("#!/bin/bash\ndd if=/dev/zero of=/logs/x bs=1M count=99; sleep 60\n", "more than 32 MB"),
        ("#!/bin/bash\nsleep 600 & sleep 600\n", "ran longer than 0.5 s"),
    ],
)
async def test_a_failed_evaluation_is_retried_on_the_same_hash_and_never_zero(
    execute: Any, task: Task, folder: Path, grade: str, reason: str
) -> None:
    query = task(grade)
    seconds = 0.5 if "sleep 600" in grade else 20
    limited = replace(query, limits=replace(query.limits, verifier_s=seconds))
    ending, settled = await execute("echo work > here", limited, retries=1)
    assert ending is Ending.FINISHED
    assert settled.verdict is Verdict.DROPPED
    assert settled.reason.startswith("evaluation failed 2 times on the same work: ")
    assert reason in settled.reason
    grades = [notes(folder, f"verifier/{n}/grade.json") for n in (0, 1)]
    assert {g["work"] for g in grades} == {settled.work} == {notes(folder, "frozen.json")["hash"]}
    assert [g["score"] for g in grades] == [None, None]


async def test_an_evaluation_that_recovers_is_scored(
    runner: Make, task: Task, gateway: Path, not_queued: Any, folder: Path
) -> None:
    query = task("#!/bin/bash\ncat /tests/flag > /logs/verifier/reward.txt 2> /dev/null\n")
    tests = Path(query.tests)
    made = runner(bash("true"))
    ending = await made.run("0-0", query, token="t", socket=gateway, queued_s=not_queued)
    job = asyncio.ensure_future(made.settle("0-0", query, ending))
    await started(folder / "verifier" / "0" / "grade.json")  # the first attempt found no flag
    (tests / "flag").write_text("0.5")
    settled = await job
    assert (settled.verdict, settled.score) == (Verdict.SCORED, 0.5)
    assert settled.detail["attempts"] > 1


async def test_planted_rewards_tests_and_hooks_do_not_raise_the_score(execute: Any, task: Task) -> None:
    grade = """#!/bin/bash
python3 -c "
import json, os, pathlib
ok = pathlib.Path('/app/answer').is_file() and pathlib.Path('/app/answer').read_text() == 'yes'
pathlib.Path('/logs/verifier/reward.json').write_text(json.dumps({'reward': float(ok)}))
"
"""
    plant = """
mkdir -p tests logs/verifier /tmp/logs ~/.local/lib/python3.11/site-packages
echo 'echo 1 > /logs/verifier/reward.txt' > tests/test.sh
echo 1 > logs/verifier/reward.txt; echo 1 > reward.txt; echo 1 > reward.json
for name in conftest sitecustomize usercustomize json os pathlib; do
  echo 'open("/logs/verifier/reward.json", "w").write("1"); import os; os._exit(0)' > $name.py
  cp $name.py ~/.local/lib/python3.11/site-packages/
done
mkdir /logs; echo 1 > /logs/verifier/reward.json; echo 1 > /tests/test.sh
ln -s /tests/test.sh answer
exit 0
"""
    ending, settled = await execute(plant, task(grade.replace("python3 -c", "cd /; python3 -c")))
    assert (ending, settled.verdict, settled.score) == (Ending.FINISHED, Verdict.SCORED, 0.0)


async def test_names_of_the_task_are_removed_before_grading(execute: Any, task: Task) -> None:
    grade = "#!/bin/bash\nls -R /app | grep -q conftest && r=1 || r=0.25; echo $r > /logs/verifier/reward.txt\n"
    query = task(grade, metadata={"remove_before_grading": ("conftest.py",)})
    _, settled = await execute("mkdir a; touch conftest.py a/conftest.py a/kept", query)
    assert settled.score == 0.25


async def test_the_verifier_has_no_way_out_trusted_tests_and_an_empty_log_folder(execute: Any, task: Task) -> None:
    grade = """#!/bin/bash
n=0
ls /run/gateway 2> /dev/null || n=$((n+1))
(exec 3<>/dev/tcp/127.0.0.1/8080) 2> /dev/null || n=$((n+1))
touch /tests/x 2> /dev/null || n=$((n+1))
[ -z "$(ls -A /logs/verifier)" ] && n=$((n+1))
[ "$(cat /app/answer)" = yes ] && touch /app/writable && n=$((n+1))
[ "$PWD $A $B $TASK_TESTS" = "/app 1 2 /tests" ] && n=$((n+1))
echo "{\\"passed\\": $n, \\"total\\": 6}" > /logs/verifier/reward.json
"""
    query = task(grade, env={"A": "1"}, verifier_env={"B": "2"})
    _, settled = await execute('echo yes > answer; test $A = 1 -a -z "$B"', query)
    assert (settled.score, settled.detail["passed"]) == (1.0, 6)


async def test_hostile_work_is_frozen_and_graded(execute: Any, task: Task, folder: Path) -> None:
    line = """
echo yes > answer; mkfifo fifo; truncate -s 20M s1 s2 s3; ln -s /etc/passwd out; ln -s answer in; mkdir locked
echo x > locked/y; chmod 000 locked/y locked; python3 -c '
import os
for _ in range(90): os.mkdir("d"); os.chdir("d")'
"""
    ending, settled = await execute(line, task(WORD))
    assert (ending, settled.verdict, settled.score) == (Ending.FINISHED, Verdict.SCORED, 1.0)
    frozen = notes(folder, "frozen.json")
    assert sorted(path.name for path in (folder / "work").iterdir()) == ["answer", "d", "in", "locked", "s1"]
    assert {line.split(":")[0] for line in frozen["left_out"]} >= {"fifo", "s2", "s3", "out"}


async def test_a_changed_frozen_work_is_not_graded(
    runner: Make, task: Task, gateway: Path, not_queued: Any, folder: Path
) -> None:
    made, query = runner(bash("echo no > answer")), task(WORD)
    ending = await made.run("0-0", query, token="t", socket=gateway, queued_s=not_queued)
    await made.freeze("0-0", query)
    (folder / "work" / "answer").write_text("yes\n")
    settled = await made.settle("0-0", query, ending)
    assert settled.verdict is Verdict.DROPPED
    assert "has changed" in settled.reason


async def test_settles_again_after_a_restart_on_the_frozen_work(
    runner: Make, task: Task, gateway: Path, not_queued: Any, folder: Path, tmp_path: Path
) -> None:
    query = task(WORD)
    first = runner(bash("echo yes > answer"))
    ending = await first.run("0-0", query, token="t", socket=gateway, queued_s=not_queued)
    hashed = await first.freeze("0-0", query)
    (folder / "verifier" / "0" / "logs" / "verifier").mkdir(parents=True)
    (folder / "verifier" / "0" / "logs" / "verifier" / "reward.json").write_text("0.1")  # of an attempt cut short
    (tmp_path / "scratch" / "0-0-v0" / "workspace").mkdir(parents=True)
    second = runner(bash("false"))
    for _ in range(2):
        settled = await second.settle("0-0", query, ending)
        assert (settled.verdict, settled.score, settled.work) == (Verdict.SCORED, 1.0, hashed)


async def test_a_freeze_cut_short_is_made_again(
    runner: Make, task: Task, gateway: Path, not_queued: Any, folder: Path
) -> None:
    made, query = runner(bash("echo yes > answer")), task(WORD)
    await made.run("0-0", query, token="t", socket=gateway, queued_s=not_queued)
    for name in ("work", "work.part"):
        (folder / name).mkdir()
        (folder / name / "half").write_text("half")
    await made.freeze("0-0", query)
    assert [path.name for path in (folder / "work").iterdir()] == ["answer"]


async def test_what_was_never_frozen_and_lost_is_dropped(runner: Make, task: Task) -> None:
    made, query = runner(bash("true")), task(WORD)
    with pytest.raises(RunError, match="lost before it was frozen"):
        await made.freeze("0-0", query)
    settled = await made.settle("0-0", query, Ending.FINISHED)
    assert settled.verdict is Verdict.DROPPED


async def test_an_execution_folder_from_before_a_kill_is_replaced(execute: Any, task: Task, folder: Path) -> None:
    (folder / "work").mkdir(parents=True)
    (folder / "work" / "answer").write_text("yes\n")
    (folder / "frozen.json").write_text('{"hash": "old"}')
    (folder / "harness.log").write_text("old\n")
    _, settled = await execute("echo new", task(WORD))
    assert settled.score == 0.0
    assert settled.work != "old"
    assert (folder / "harness.log").read_text() == "new\n"


async def started(path: Path) -> None:
    while not path.exists():  # noqa: ASYNC240  (another process is awaited)
        await asyncio.sleep(0.02)


async def test_kill_and_stop(runner: Make, task: Task, gateway: Path, not_queued: Any, tmp_path: Path) -> None:
    made, query = runner(bash("trap '' TERM; setsid sleep 60606 & touch up; sleep 60606")), task(WORD)
    jobs = [
        asyncio.ensure_future(made.run(f"0-{n}", query, token="t", socket=gateway, queued_s=not_queued)) for n in (0, 1)
    ]
    for n in (0, 1):
        await started(tmp_path / "scratch" / f"0-{n}" / "workspace" / "up")
    await made.kill("0-0")
    assert await jobs[0] is Ending.LOST
    assert not jobs[1].done()
    assert (await made.settle("0-0", query, Ending.LOST)) == Settlement(Verdict.DROPPED, reason="killed")
    await made.stop()
    assert await jobs[1] is Ending.LOST
    assert "sleep 60606" not in processes()
    assert await made.run("0-2", query, token="t", socket=gateway, queued_s=not_queued) is Ending.LOST


async def test_killing_a_verifier_drops_and_stopping_leaves_it_to_later(
    runner: Make, task: Task, gateway: Path, not_queued: Any, folder: Path
) -> None:
    query = task("#!/bin/bash\ntouch /logs/up; sleep 60607\n")
    made = runner(bash("true"))
    for end in (made.kill, None):
        ending = await made.run("0-0", query, token="t", socket=gateway, queued_s=not_queued)
        job = asyncio.ensure_future(made.settle("0-0", query, ending))
        if end:
            await started(folder / "verifier" / "0" / "logs" / "up")
            await end("0-0")
            assert (await job).reason == "killed"
            made = runner(bash("true"))
        else:
            await started(folder / "verifier" / "0" / "logs" / "up")
            await made.stop()
            with pytest.raises(RunError, match="stopped before it was settled"):
                await job
    assert "sleep 60607" not in processes()


async def test_verifiers_wait_their_turn(
    runner: Make, task: Task, gateway: Path, not_queued: Any, tmp_path: Path
) -> None:
    """Each verifier counts those that are alive on the host's side of a shared folder: never more than one."""
    made = runner(bash("true"), concurrent_verifiers=1)
    query = task("#!/bin/bash\nsleep 0.2; echo 1 > /logs/verifier/reward.txt\n")
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, len([name for name in made._live if name.startswith("1-")]))
            await asyncio.sleep(0.01)

    endings = [await made.run(f"1-{n}", query, token="t", socket=gateway, queued_s=not_queued) for n in range(3)]
    watcher = asyncio.ensure_future(watch())
    settled = await asyncio.gather(*(made.settle(f"1-{n}", query, endings[n]) for n in range(3)))
    watcher.cancel()
    assert [s.score for s in settled] == [1.0] * 3
    assert most == 1


async def test_a_sparse_file_of_20_gb_and_a_bomb_of_files_are_bounded(
    execute: Any, task: Task, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freezing, "MOST_FILES", 500)
    line = """
echo yes > answer; truncate -s 20G by-name
python3 -c '
import os
os.mkdir("bomb")
for n in range(600): open(f"bomb/{n:04}", "w").close()
with open("sparse", "wb") as file:
    try: file.truncate(20 << 30)
    except OSError: file.truncate(31 << 20)'
"""
    ending, settled = await execute(line, task(WORD), retries=0)
    assert (ending, settled.verdict, settled.score) == (Ending.FINISHED, Verdict.SCORED, 1.0)
    frozen = notes(folder, "frozen.json")
    assert len(list((folder / "work").rglob("*"))) == 500
    assert frozen["bytes"] < 32 << 20
    assert any("more than 500 entries" in line for line in frozen["left_out"])


class Broken:
    """A verifier of the user's own, as bad as can be."""

    def mounts(self, query: Query) -> dict[str, str]:
        return {}

    async def grade(self, query: Query, box: Any, logs: Path) -> Grade:
        if query.name == "raises":
            raise KeyError("x")
        return Grade(float(query.name))


@pytest.mark.parametrize(
    ("name", "score", "reason"),
    [
        ("0.25", 0.25, ""),
        ("nan", None, "score nan is not in [0, 1]"),
        ("inf", None, "score inf is not in [0, 1]"),
        ("-1", None, "score -1.0 is not in [0, 1]"),
        ("raises", None, "the verifier raised KeyError: 'x'"),
    ],
)
async def test_a_verifier_of_one_s_own(
    execute: Any, task: Task, monkeypatch: pytest.MonkeyPatch, name: str, score: float | None, reason: str
) -> None:
    monkeypatch.setitem(sys.modules, "own", types.SimpleNamespace(Broken=Broken))
    _, settled = await execute("true", task(WORD, name=name), verifier="own:Broken", retries=0)
    if score is None:
        assert settled.verdict is Verdict.DROPPED
        assert settled.reason.endswith(reason)
    else:
        assert (settled.verdict, settled.score) == (Verdict.SCORED, score)


@pytest.mark.parametrize("method", ["freeze", "grading_copy"])
async def test_a_full_disk_drops_the_execution_and_nothing_else(
    execute: Any, task: Task, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def full(*words: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Workplace, method, full)
    _, settled = await execute("true", task(WORD), retries=1)
    assert settled.verdict is Verdict.DROPPED
    assert "No space left on device" in settled.reason


async def test_a_report_of_tests_is_scored_by_the_fixed_list(execute: Any, task: Task) -> None:
    grade = """#!/bin/bash
cd $TASK_LOGS
echo '{"results": {"tests": [{"name": "a", "status": "passed"}, {"name": "z", "status": "passed"}]}}' > ctrf.json
echo 1 > $TASK_LOGS/reward.txt
"""
    query = task(grade, metadata={"verifier": Options(kind="ctrf", ids=("a", "b", "c", "d"))})
    _, settled = await execute("true", query)
    assert (settled.verdict, settled.score, settled.detail["missing"]) == (Verdict.SCORED, 0.25, 3)
    query = task("#!/bin/bash\necho 1 > $TASK_LOGS/reward.txt\n", metadata=query.metadata)
    _, settled = await execute("true", query, retries=0)
    assert settled.verdict is Verdict.DROPPED
    assert settled.reason.endswith("the verifier wrote no ctrf.json")
