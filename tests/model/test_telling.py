"""What the terminal is told of downloads."""

import sys
from pathlib import Path

from qwengyre.model import convert
from qwengyre.model.hub import bar
from qwengyre.types import Phase

PIP = """
import os, pathlib, sys, time
folder = pathlib.Path(os.environ["TMPDIR"], "pip-unpack-x")
folder.mkdir()
for _ in range(4):
    with (folder / "half.whl").open("ab") as file:
        file.write(b"x" * 1000)
    time.sleep(0.1)
sys.exit("ERROR: no such wheel")
"""


def test_what_pip_has_fetched_is_told_while_it_grows(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(convert, "_LOOK_S", 0.05)
    told: list[Phase] = []
    returned, errors = convert._watched([sys.executable, "-c", PIP], tmp_path, told.append)
    assert returned == 1
    assert errors == "ERROR: no such wheel\n"
    assert {phase.total for phase in told} == {convert.WHEEL_BYTES}
    done = [phase.done for phase in told]
    assert done == sorted(done)
    assert {0, 1000, 4000} <= set(done)


def test_what_the_hub_has_sent_is_told_once_a_size_is_known():
    told: list[Phase] = []
    made = bar("model a/b: downloading", told.append)
    for desc in ("Downloading bytes", "Reconstructing (incomplete total...)"):
        one = made(desc=desc, total=0, initial=0, unit="B", unit_scale=True)
        one.total += 500
        one.refresh()
        one.update(200)
        one.refresh()
        one.update(300)
        one.set_description("Reconstruction complete")
        one.close()
    assert told[-1] == Phase("model a/b: downloading", 500, 500, "B", over=True)
    assert told[0].done in (0, 200)
    assert 200 in [phase.done for phase in told]
    assert sum(phase.over for phase in told) == 1


def test_what_was_cached_is_no_download(capfd):
    told: list[Phase] = []
    one = bar("model a/b: downloading", told.append)(desc="Reconstructing", total=0)
    one.set_description("Reconstruction complete")
    one.close()
    assert told == []
    assert capfd.readouterr().err == ""
