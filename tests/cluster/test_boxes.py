"""A box repeats answers, not executions; it ends what runs when nobody speaks to it any more."""

import asyncio
from pathlib import Path

import pytest

from qwengyre.cluster.boxes import Box, BoxSpec
from qwengyre.errors import StartingError
from qwengyre.types import Ending, Limits, Query, Verdict

LIMITS = Limits(agent_s=60, overall_s=60, verifier_s=60, memory_mb=512, pids=64, disk_mb=64)


def box_of(tmp_path: Path, command: str, away_s: float = 60.0) -> Box:
    (tmp_path / "socket").mkdir(exist_ok=True)
    harness = {
        "kind": "command",
        "command": ("sh", "-c", command),
        "env": {},
        "files": {},
        "mounts": (),
        "args": {},
    }
    return Box(
        BoxSpec(
            run_id=f"test-{tmp_path.name}",
            run_dir=tmp_path,
            scratch=tmp_path / "scratch",
            socket=tmp_path / "socket" / "s",
            model="m",
            harness=harness,
            sandbox="bwrap",
            away_s=away_s,
        )
    )


def query(tmp_path: Path) -> Query:
    return Query("q", "do", "", "/work", "", str(tmp_path), LIMITS)


async def test_asked_again_it_tells_again(tmp_path: Path) -> None:
    box = box_of(tmp_path, "echo once >> ran; sleep 0.3")
    with pytest.raises(StartingError):
        await box.run("0-0", query(tmp_path), "t", box.incarnation)
    report = await box.start(None)
    assert report.fresh
    assert report.known == frozenset()
    first = asyncio.create_task(box.run("0-0", query(tmp_path), "t", box.incarnation))
    await asyncio.sleep(0)
    again = await box.start(None)
    assert (again.fresh, again.known) == (False, {"0-0"})
    first.cancel()  # control died
    assert await box.run("0-0", query(tmp_path), "another", box.incarnation) is Ending.FINISHED
    assert await box.run("0-0", query(tmp_path), "another", box.incarnation) is Ending.FINISHED
    assert (tmp_path / "scratch" / "0-0" / "workspace" / "ran").read_text() == "once\n"
    await box.stop()


async def test_what_another_incarnation_ran_is_lost(tmp_path: Path) -> None:
    old, box = box_of(tmp_path, "true"), box_of(tmp_path, "true")
    assert box.incarnation > old.incarnation
    await box.start(None)
    assert await box.run("0-0", query(tmp_path), "t", old.incarnation) is Ending.LOST
    settlement = await box.settle("0-0", query(tmp_path), Ending.LOST)
    assert settlement.verdict is Verdict.DROPPED
    assert not (tmp_path / "executions" / "0-0" / "harness.log").exists(), "it was not run"
    await box.stop()


async def test_without_a_word_from_control_it_ends_what_runs(tmp_path: Path) -> None:
    box = box_of(tmp_path, "sleep 1000", away_s=1.0)
    await box.start(None)
    running = asyncio.create_task(box.run("0-0", query(tmp_path), "t", box.incarnation))
    for _ in range(8):
        await asyncio.sleep(0.2)
        await box.heard()
        assert not running.done(), (tmp_path / "executions" / "0-0" / "ending.json").read_text()
    assert await running is Ending.LOST
    await box.stop()
