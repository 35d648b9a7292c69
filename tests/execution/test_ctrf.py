"""Reports of tests: the denominator is the fixed list, whatever the report says of itself."""

import json
from pathlib import Path
from typing import Any

import pytest

from qwengyre.execution.verifiers.ctrf import read
from qwengyre.execution.verifiers.files import NoReward

IDS = ("a", "b", "x.py::c", "s::d")


def report(folder: Path, *tests: dict[str, Any]) -> Path:
    value = {"results": {"summary": {"tests": 1, "passed": 99}, "tests": tests}}
    (folder / "ctrf.json").write_text(json.dumps(value))
    return folder


def test_passed_of_the_fixed_list(tmp_path: Path) -> None:
    found = report(
        tmp_path,
        {"name": "a", "status": "passed"},
        {"name": "b", "status": "skipped"},
        {"name": "c", "status": "passed", "filePath": "x.py"},
        {"name": "d", "status": "passed", "suite": "other"},
        {"name": "extra", "status": "passed"},
    )
    assert read(found, IDS) == (0.5, {"passed": 2, "total": 4, "missing": 1})


@pytest.mark.parametrize("order", [("passed", "failed"), ("failed", "passed")])
def test_of_one_that_is_there_twice_the_worse_counts(tmp_path: Path, order: tuple[str, str]) -> None:
    tests = [{"name": "a", "status": status} for status in order]
    assert read(report(tmp_path, *tests), ("a",))[0] == 0.0


@pytest.mark.parametrize("status", ["Passed", "pending", "other", True, None, 1])
def test_only_passed_is_passed(tmp_path: Path, status: Any) -> None:
    assert read(report(tmp_path, {"name": "a", "status": status}), ("a",))[0] == 0.0
    assert read(report(tmp_path, {"name": "a"}), ("a",))[0] == 0.0


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "null", "{", "{}", '{"results": []}', '{"results": {"tests": {}}}', '{"results": {"tests": [1]}}'),
        *('{"results": {"tests": [{"status": "passed"}]}}', '{"results": {"tests": [{"name": 1}]}}', "[" * 60000),
    ],
)
def test_a_report_that_is_none_is_a_failed_evaluation(tmp_path: Path, text: str) -> None:
    (tmp_path / "ctrf.json").write_text(text)
    with pytest.raises(NoReward, match=r"ctrf\.json"):
        read(tmp_path, IDS)


def test_none_too_long_and_a_link(tmp_path: Path) -> None:
    with pytest.raises(NoReward, match=r"wrote no ctrf\.json"):
        read(tmp_path, IDS)
    with (tmp_path / "ctrf.json").open("wb") as file:
        file.truncate(20 << 30)
    with pytest.raises(NoReward, match="not a regular file of at most"):
        read(tmp_path, IDS)
    (tmp_path / "ctrf.json").rename(tmp_path / "other")
    (tmp_path / "ctrf.json").symlink_to("other")
    with pytest.raises(NoReward, match="cannot be read"):
        read(tmp_path, IDS)
