"""TensorBoard's files hold the numbers of the plain files, each step once, and never end a run."""

import sys
from pathlib import Path
from typing import Any

import pytest
from tensorboardX.proto.event_pb2 import Event

from qwengyre.errors import MachineError
from qwengyre.observe.trackers import TensorBoard, Tracked, numbers, tracker


class Shown:
    def __init__(self) -> None:
        self.said: list[str] = []
        self.seen, self.closed = 0, False

    def __call__(self, status: dict[str, Any]) -> None:
        self.seen += 1

    def say(self, line: str) -> None:
        self.said.append(line)

    def close(self) -> None:
        self.closed = True


def written(folder: Path) -> list[tuple[str, int, float]]:
    """Scalars of the one file there: records of length (8 bytes), its checksum (4), data, its checksum (4)."""
    (file,) = folder.iterdir()
    data, found = file.read_bytes(), []
    while data:
        length = int.from_bytes(data[:8], "little")
        event = Event.FromString(data[12 : 12 + length])
        found += [(value.tag, event.step, round(value.simple_value, 6)) for value in event.summary.value]
        data = data[16 + length :]
    return sorted(found)


def row(step: int, reward: float) -> dict[str, Any]:
    return {"schema_version": 1, "step": step, "groups": [1, 2], "reward/mean": reward, "actor/optimizer_step": True}


def test_numbers_of_a_line() -> None:
    assert numbers(row(3, 0.5) | {"kinds": {}, "a/b": None}) == {"reward/mean": 0.5, "actor/optimizer_step": 1.0}


def test_each_line_is_written_once(tmp_path: Path) -> None:
    shown = Shown()
    view = Tracked(shown, TensorBoard(tmp_path / "tensorboard"))
    view({"phase": "starting"})
    rows = [row(0, 0.25), row(1, 0.5)]
    evaluation = {"step": 0, "eval/mean": 0.125, "tasks": []}
    view({"rows": rows[:1], "evaluations": [evaluation]})
    view({"rows": rows, "evaluations": [evaluation]})
    view({"rows": rows, "evaluations": [evaluation]})
    view.close()
    assert (shown.seen, shown.closed) == (4, True)
    flags = [("actor/optimizer_step", 0, 1.0), ("actor/optimizer_step", 1, 1.0)]
    rewards = [("reward/mean", 0, 0.25), ("reward/mean", 1, 0.5)]
    assert written(tmp_path / "tensorboard") == [*flags, ("eval/mean", 0, 0.125), *rewards]


def test_steps_that_are_trained_again_replace_the_old_ones(tmp_path: Path) -> None:
    first = TensorBoard(tmp_path)
    evaluation = {"step": 0, "eval/mean": 0.125}
    first.write("evaluations", [evaluation])
    first.write("rows", [{"step": 0, "reward/mean": 0.25}, {"step": 1, "reward/mean": 0.5}])
    first.write("rows", [{"step": 0, "reward/mean": 0.25}, {"step": 1, "reward/mean": 0.75}])
    first.close()
    assert written(tmp_path) == [("eval/mean", 0, 0.125), ("reward/mean", 0, 0.25), ("reward/mean", 1, 0.75)]
    again = TensorBoard(tmp_path)
    again.write("rows", [{"step": 0, "reward/mean": 0.25}])
    again.close()
    assert written(tmp_path) == [("reward/mean", 0, 0.25)], "a resume begins the folder anew"


def test_a_folder_that_cannot_be_written_ends_no_run(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").write_text("in the way")
    shown = Shown()
    view = Tracked(shown, TensorBoard(tmp_path / "tensorboard"))
    for _ in range(2):
        view({"rows": [row(0, 0.5)]})
    view.close()
    assert [line.partition(":")[0] for line in shown.said] == ["TensorBoard's files are written no more"]
    assert shown.seen == 2


def test_a_tracker_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(MachineError, match=r"pip install 'qwengyre\[tensorboard\]'"):
        tracker(tmp_path, tensorboard=True)
    assert tracker(tmp_path, tensorboard=False) is None
