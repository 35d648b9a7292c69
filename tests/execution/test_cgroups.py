"""Control groups: version 1 for real where this machine has it, version 2 on a folder that looks like one."""

import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from control_groups import groups

from qwengyre.execution.sandboxes import cgroups

RUN = f"cgroups{os.getpid()}"


@pytest.fixture
def hierarchy() -> cgroups.Hierarchy:
    found = cgroups.find()
    if not found.folders:
        pytest.fail("no control group can be made here: run the tests where one can (root, or a delegated cgroup v2)")
    return found


def join(group: cgroups.Group, line: str) -> subprocess.Popen[bytes]:
    script = 'for file in $0; do echo 0 > "$file" || exit 9; done; ' + line
    return subprocess.Popen(["bash", "-c", script, " ".join(group.joins)])


def test_sweep_kills_and_removes_what_a_run_left(hierarchy: cgroups.Hierarchy) -> None:
    boxes = [cgroups.create(hierarchy, RUN, name, memory_mb=64, pids=16) for name in ("1-0", "1-1")]
    children = [join(group, "trap '' TERM; setsid sleep 999 & sleep 999") for group in boxes]
    for group in boxes:
        while any(len(Path(file).read_text().split()) < 3 for file in group.joins):
            time.sleep(0.01)
    assert cgroups.sweep(RUN) >= 3
    assert [child.wait() for child in children] == [-signal.SIGKILL] * 2
    assert not groups(RUN)
    assert cgroups.sweep(RUN) == 0


def test_kill_outruns_a_fork_bomb_and_the_group_can_be_used_again(hierarchy: cgroups.Hierarchy) -> None:
    group = cgroups.create(hierarchy, RUN, "bomb", memory_mb=64, pids=24)
    try:
        bomb = join(group, "f() { f | f & }; f 2> /dev/null; while :; do sleep 0.01 || :; done 2> /dev/null")
        while len(Path(group.joins[0]).read_text().split()) < 20:
            time.sleep(0.01)
        assert group.kill() >= 20
        assert bomb.wait() == -signal.SIGKILL
        assert all(not Path(file).read_text() for file in group.joins)
        assert join(group, "true").wait() == 0
    finally:
        group.remove()
    assert not any(folder.exists() for folder in group.folders.values())


def test_boxes_come_and_go_at_once(hierarchy: cgroups.Hierarchy) -> None:
    """The run's folder goes with its last box, and comes back with the next: no box may fall between."""

    def one(number: int) -> bool:
        group = cgroups.create(hierarchy, RUN, f"b{number}", memory_mb=64, pids=8)
        there = all(folder.is_dir() for folder in group.folders.values())
        group.remove()
        return there

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one, range(300)))
    assert not groups(RUN)


def test_memory_kills_are_counted(hierarchy: cgroups.Hierarchy) -> None:
    group = cgroups.create(hierarchy, RUN, "memory", memory_mb=32, pids=16)
    try:
        assert group.memory_kills() == 0
        assert join(group, "exec python3 -c 'bytearray(200 << 20)'").wait() == -signal.SIGKILL
        assert group.memory_kills() == 1
    finally:
        group.remove()


def test_version_2_files(tmp_path: Path) -> None:
    group = cgroups.create(
        cgroups.Hierarchy(2, {"memory": tmp_path, "pids": tmp_path}), "r", "1-0", memory_mb=1, pids=7
    )
    folder = tmp_path / "qwengyre-r" / "1-0"
    assert (tmp_path / "qwengyre-r" / "cgroup.subtree_control").read_text() == "+memory +pids"
    assert (folder / "memory.max").read_text() == str(1 << 20)
    assert (folder / "memory.swap.max").read_text() == "0"
    assert (folder / "pids.max").read_text() == "7"
    assert group.joins == [str(folder / "cgroup.procs")]
    (folder / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 3\noom_kill 2\noom_group_kill 0\n")
    assert group.memory_kills() == 2
    (folder / "cgroup.kill").write_text("")
    group.kill()
    assert (folder / "cgroup.kill").read_text() == "1"
    assert (folder / "pids.max").read_text() == "7"


def test_own_group_and_ancestors_are_candidates(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    mount = cgroups.Mount(1, tmp_path, frozenset({"pids"}), "/a/b/not-visible")
    assert mount.candidates() == [tmp_path / "a" / "b", tmp_path / "a", tmp_path]
