import json
import os
from pathlib import Path

import pytest

from qwengyre import config as configuration
from qwengyre.cluster.checkpoints import MARK, Checkpoint, complete, newest, prune
from qwengyre.cluster.folder import RunFolder
from qwengyre.config import Config
from qwengyre.errors import ConfigError, MachineError


def test_a_folder_that_holds_a_run_is_refused_without_resume(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.claim(Config(), resume=False)
    folder.release()
    assert configuration.load([folder.config_file], []) == Config()
    with pytest.raises(ConfigError, match="--resume"):
        RunFolder(tmp_path / "run").claim(Config(), resume=False)
    again = RunFolder(tmp_path / "run")
    again.claim(Config(), resume=True)
    again.release()


def test_two_processes_cannot_hold_one_run(tmp_path: Path) -> None:
    first = RunFolder(tmp_path / "run")
    first.claim(Config(), resume=False)
    with pytest.raises(ConfigError, match="alive"):
        RunFolder(tmp_path / "run").claim(Config(), resume=True)
    first.release()


def test_resume_needs_a_run_and_the_same_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no run"):
        RunFolder(tmp_path / "none").claim(Config(), resume=True)
    folder = RunFolder(tmp_path / "run")
    folder.claim(Config(), resume=False)
    folder.release()
    with pytest.raises(ConfigError, match=r"rl\.group_size=4"):
        folder.check(configuration.load([], ["rl.group_size=4"]), resume=True)
    folder.check(configuration.load([], ["checkpoint.keep=9"]), resume=True)


def test_a_place_that_cannot_be_written_is_one_line_and_nothing_is_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(MachineError, match="not a writable folder"):
        RunFolder(tmp_path / "file" / "run").claim(Config(), resume=False)
    if os.geteuid():  # root writes everywhere
        locked = tmp_path / "locked"
        locked.mkdir(mode=0o500)
        with pytest.raises(MachineError, match="not a writable folder"):
            RunFolder(locked / "run").claim(Config(), resume=False)
        assert not list(locked.iterdir())


def test_only_complete_checkpoints_count_and_old_ones_go(tmp_path: Path) -> None:
    def written(step: int) -> Checkpoint:
        folder = tmp_path / "checkpoints" / f"step-{step:06d}"
        folder.mkdir(parents=True)
        return Checkpoint(folder, step, step)

    for step in (1, 2, 3):
        written(step).complete()
    written(4)  # its weights were written, its mark was not
    assert newest(tmp_path) is not None
    assert [c.step for c in complete(tmp_path)] == [1, 2, 3]
    assert json.loads((tmp_path / "checkpoints" / "step-000003" / MARK).read_text())["version"] == 3
    prune(tmp_path, keep=2)
    assert [c.step for c in complete(tmp_path)] == [2, 3]
    prune(tmp_path, keep=0)
    assert [c.step for c in complete(tmp_path)] == [2, 3]


def test_a_checkpoint_says_what_it_took(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(b"x" * 100)
    said = Checkpoint(tmp_path, 3, 7).complete(1.25)
    assert json.loads((tmp_path / MARK).read_text()) == said
    assert (said["step"], said["version"], said["seconds"], said["bytes"]) == (3, 7, 1.25, 100)
