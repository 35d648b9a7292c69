"""What stands in a workspace when a harness starts."""

from collections.abc import Callable
from pathlib import Path

from qwengyre.execution.workplace import Workplace
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
