"""Freezing: what a hostile work product cannot do, and that equal work has an equal hash."""

import os
import socket
from pathlib import Path

import pytest

from qwengyre.execution import freeze as module
from qwengyre.execution.freeze import diff, freeze, remove

MOST = 1 << 20


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work" / "src").mkdir(parents=True)
    (tmp_path / "work" / "src" / "a.py").write_text("print(1)\n")
    return tmp_path / "work"


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_copy_and_hash_are_stable(work: Path, tmp_path: Path) -> None:
    (work / "run.sh").write_text("true\n")
    (work / "run.sh").chmod(0o4777)
    (work / "empty").mkdir()
    first = freeze(work, tmp_path / "one", workdir="/app", most_bytes=MOST)
    again = freeze(tmp_path / "one", tmp_path / "two", workdir="/app", most_bytes=MOST)
    assert first.hash == again.hash
    assert (first.files, first.bytes, first.left_out) == (2, 14, [])
    assert listing(tmp_path / "two") == ["empty", "run.sh", "src", "src/a.py"]
    assert (tmp_path / "one" / "run.sh").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize("change", ["content", "name", "mode", "folder", "link"])
def test_every_difference_changes_the_hash(work: Path, tmp_path: Path, change: str) -> None:
    before = freeze(work, tmp_path / "before", workdir="/app", most_bytes=MOST).hash
    path = work / "src" / "a.py"
    if change == "content":
        path.write_text("print(2)\n")
    elif change == "name":
        path.rename(work / "src" / "b.py")
    elif change == "mode":
        path.chmod(0o755)
    elif change == "folder":
        (work / "new").mkdir()
    else:
        (work / "link").symlink_to("src")
    assert freeze(work, tmp_path / "after", workdir="/app", most_bytes=MOST).hash != before


def test_links_stay_inside_or_are_left_out(work: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (work / "deep" / "er").mkdir(parents=True)
    links = {
        "inner": "src/a.py",
        "up": "../work/src",
        "dangling": "nowhere",
        "absolute": "/app/src/a.py",
        "deep/er/absolute": "/app/src",
        "passwd": "/etc/passwd",
        "other": "/application/x",
        "out": "../secret",
        "deep/er/top": "../..",
        "deep/er/through": "top/../secret",  # inside by its text, outside by way of another link
        "loop": "loop",
    }
    for name, target in links.items():
        (work / name).symlink_to(target)
    frozen = freeze(work, tmp_path / "copy", workdir="/app", most_bytes=MOST)
    kept = {name: os.readlink(tmp_path / "copy" / name) for name in links if (tmp_path / "copy" / name).is_symlink()}
    assert kept == {
        "inner": "src/a.py",
        "dangling": "nowhere",
        "absolute": "src/a.py",
        "deep/er/absolute": "../../src",
        "deep/er/top": "../..",
        "loop": "loop",
    }
    assert {line.split(":")[0] for line in frozen.left_out} == set(links) - set(kept)
    again = freeze(tmp_path / "copy", tmp_path / "again", workdir="/app", most_bytes=MOST)
    assert (again.hash, again.left_out) == (frozen.hash, [])


def test_special_files_are_left_out(work: Path, tmp_path: Path) -> None:
    os.mkfifo(work / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(work / "socket"))
        frozen = freeze(work, tmp_path / "copy", workdir="/app", most_bytes=MOST)
    assert listing(tmp_path / "copy") == ["src", "src/a.py"]
    assert len(frozen.left_out) == 2


def test_size_counts_sparse_bytes_and_what_fits_is_kept(work: Path, tmp_path: Path) -> None:
    with (work / "a-sparse").open("wb") as file:
        file.truncate(20 << 30)
    (work / "big").write_bytes(b"x" * (MOST - 100))
    (work / "more").write_bytes(b"x" * 200)
    (work / "small").write_bytes(b"x")
    frozen = freeze(work, tmp_path / "copy", workdir="/app", most_bytes=MOST)
    assert listing(tmp_path / "copy") == ["big", "small", "src", "src/a.py"]
    assert [line.split(":")[0] for line in frozen.left_out] == ["a-sparse", "more"]


def test_count_and_depth_are_bounded(work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_FILES", 50)
    for number in range(60):
        (work / f"{number:03d}").symlink_to("src")
    frozen = freeze(work, tmp_path / "many", workdir="/app", most_bytes=MOST)
    assert len(listing(tmp_path / "many")) == 50
    assert frozen.left_out
    fd = os.open(work, os.O_RDONLY)
    for _ in range(100):  # far longer than a path can be
        os.mkdir("d" * 200, dir_fd=fd)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    monkeypatch.undo()
    frozen = freeze(work, tmp_path / "deep", workdir="/app", most_bytes=MOST)
    assert any("a path too long" in line for line in frozen.left_out)
    remove(work)
    assert not work.exists()


def test_names_are_bytes_and_lines_in_names_do_not_forge(work: Path, tmp_path: Path) -> None:
    (work / "new\nline").write_text("1")
    (work / os.fsdecode(b"\xff\xfe")).write_text("2")
    frozen = freeze(work, tmp_path / "copy", workdir="/app", most_bytes=MOST)
    assert frozen.files == 3
    assert freeze(tmp_path / "copy", tmp_path / "again", workdir="/app", most_bytes=MOST).hash == frozen.hash


def test_a_link_as_the_workspace_is_refused(work: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(work)
    with pytest.raises(OSError, match="link"):
        freeze(tmp_path / "link", tmp_path / "copy", workdir="/app", most_bytes=MOST)


def test_diff_against_layers(tmp_path: Path) -> None:
    image, given, after = (tmp_path / name for name in ("image", "given", "after"))
    for folder in (image, given, after):
        folder.mkdir()
    (image / "same").write_text("same\n")
    (after / "same").write_text("same\n")
    (image / "over").write_text("image\n")
    (given / "over").write_text("given\n")
    (after / "over").write_text("changed\n")
    (given / "gone").write_text("bye\n")
    (after / "new").write_text("hello")
    (after / "empty").write_text("")
    (given / "bytes").write_bytes(b"\xff1")
    (after / "bytes").write_bytes(b"\xff2")
    assert diff([image, given], after) == (
        "Binary, long or special file 'bytes' differs\n"
        "Added empty file 'empty'\n"
        "--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-bye\n"
        "--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+hello\n\\ No newline at end of file\n"
        "--- a/over\n+++ b/over\n@@ -1 +1 @@\n-given\n+changed\n"
    )
