import json
from pathlib import Path

import pytest

from qwengyre.cluster.folder import RunFolder
from qwengyre.config import Config
from qwengyre.observe.listening import listening


def test_live_runs_and_where_they_listen(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "one")
    folder.claim(Config(), resume=False)
    assert any("is starting" in line for line in listening(tmp_path))
    machine = {"driver": 7, "ray": {"address": "127.0.0.1:6000"}}
    processes = {"gateway-0": {"pid": 8, "url": "http://127.0.0.1:5000", "socket": "/s"}, "box-0": {"pid": 9}}
    (folder.path / "processes.json").write_text(json.dumps({**machine, "processes": processes}))
    said = "\n".join(listening(tmp_path))
    assert "Ray at 127.0.0.1:6000" in said
    assert "gateway-0, pid 8: http://127.0.0.1:5000, /s" in said
    folder.release()
    assert len(listening(tmp_path)) == 1, "a run that is over listens nowhere"


@pytest.mark.parametrize("name", ["empty", "lock"])
def test_other_folders_are_no_runs(tmp_path: Path, name: str) -> None:
    (tmp_path / "x").mkdir()
    if name == "lock":
        (tmp_path / "x" / "lock").touch()
    assert len(listening(tmp_path)) == 1
