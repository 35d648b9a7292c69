"""What stands in a workspace when a harness starts."""

import subprocess
from collections.abc import Callable
from pathlib import Path

from qwengyre.execution.workplace import Workplace, make_room
from qwengyre.types import Query


def test_the_image_s_workdir_under_the_task_s_environment(task: Callable[..., Query], tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "app" / "src").mkdir(parents=True)
    for name in ("kept", "over", "src/deep"):
        (root / "app" / name).write_text("image\n")
    (root / "app" / "link").symlink_to("kept")
    query = task("true", files={"over": "task\n", "new": "task\n"})
    for path in [Path(query.environment), *Path(query.environment).iterdir()]:
        path.chmod(0o555 if path.is_dir() else 0o444)  # a task set installed read-only
    place = Workplace("0-0", folder=tmp_path / "e", scratch=tmp_path / "s", query=query, root=str(root))
    place.prepare()
    found = {str(p.relative_to(place.workspace)): p.read_text() for p in place.workspace.rglob("*") if p.is_file()}
    assert found == {"kept": "image\n", "link": "image\n", "over": "task\n", "new": "task\n", "src/deep": "image\n"}
    assert place.workspace.stat().st_mode & 0o700 == 0o700
    assert (place.workspace / "over").stat().st_mode & 0o600 == 0o600
    (place.workspace / "over").write_text("changed\n")
    place.freeze()
    assert "-task\n+changed\n" in (place.folder / "diff").read_text()
    assert "image" not in (place.folder / "diff").read_text()
    assert (root / "app" / "over").read_text() == "image\n"


def test_a_history_that_holds_the_solution_does_not_reach_the_agent(task: Callable[..., Query], tmp_path: Path) -> None:
    app, solution = tmp_path / "root" / "app", tmp_path / "task" / "solution"
    app.mkdir(parents=True)
    solution.mkdir(parents=True)
    answer = "def answer():\n    return 42  # the whole of it\n"
    (solution / "fix.py").write_text(answer)
    git = ["git", "-C", str(app), "-c", "user.name=a", "-c", "user.email=a@a", "-c", "init.defaultBranch=main"]
    subprocess.run([*git, "init", "-q"], check=True)
    for name, text in (("app.py", answer), ("app.py", "def answer(): ...\n")):
        (app / name).write_text(text)
        subprocess.run([*git, "add", "-A"], check=True)
        subprocess.run([*git, "commit", "-qm", "x"], check=True)
    subprocess.run([*git, "clone", "-q", "--bare", str(app), str(app / "backup")], check=True)
    subprocess.run([*git, "bundle", "create", "-q", str(app / "deep.bin"), "main"], check=True)
    (app / "pkg" / "__pycache__").mkdir(parents=True)
    (app / "pkg" / "__pycache__" / "app.cpython-311.pyc").write_bytes(b"compiled")
    (app / "pkg" / "copy.txt").write_text(answer)
    query = task("true", metadata={"folder": str(tmp_path / "task")})
    place = Workplace("0-0", folder=tmp_path / "e", scratch=tmp_path / "s", query=query, root=str(tmp_path / "root"))
    place.prepare()
    assert sorted(str(p.relative_to(place.workspace)) for p in place.workspace.rglob("*")) == ["app.py", "pkg"]
    assert place.read("scrubbed.json")["scrubbed"] == [".git", "backup", "deep.bin", "pkg/__pycache__", "pkg/copy.txt"]
    place.freeze()
    assert ".git" not in (place.folder / "diff").read_text()


def test_room_for_tests_has_no_link_on_its_way_and_no_namesake(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    work = tmp_path / "work"
    work.mkdir()
    (work / "deep").symlink_to("../out")
    make_room(work, "deep/tests")
    assert (work / "deep" / "tests").is_dir()
    assert not list((tmp_path / "out").iterdir())
    for name in ("tests.py", "tests.cpython-311-x86_64-linux-gnu.so", "tests_kept.py"):
        (work / "deep" / name).write_text("")
    (work / "deep" / "tests" / "old").write_text("")
    make_room(work, "deep/tests")
    assert sorted(path.name for path in (work / "deep").rglob("*")) == ["tests", "tests_kept.py"]
