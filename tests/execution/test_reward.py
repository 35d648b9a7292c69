"""Reward files: what counts, and that everything else is a failure with a reason, never a zero."""

import os
from pathlib import Path

import pytest

from qwengyre.execution.verifiers.reward import NoReward, read


@pytest.mark.parametrize(
    ("text", "score", "detail"),
    [
        ("1", 1.0, {}),
        ("0.25", 0.25, {}),
        ('{"reward": 0.5, "passed": 3, "note": "x", "ok": true}', 0.5, {"reward": 0.5, "passed": 3}),
        ('{"passed": 3, "total": 4}', 0.75, {"passed": 3, "total": 4}),
        ('{"reward": 0, "passed": 4, "total": 4}', 0.0, {"reward": 0, "passed": 4, "total": 4}),
    ],
)
def test_json(tmp_path: Path, text: str, score: float, detail: dict[str, float]) -> None:
    (tmp_path / "reward.json").write_text(text)
    (tmp_path / "reward.txt").write_text("0.9")  # reward.json comes first
    assert read(tmp_path) == (score, detail)


@pytest.mark.parametrize(("text", "score"), [("1\n", 1.0), (" .50 ", 0.5), ("1e-1", 0.1)])
def test_txt(tmp_path: Path, text: str, score: float) -> None:
    (tmp_path / "reward.txt").write_text(text)
    assert read(tmp_path) == (score, {})


@pytest.mark.parametrize(
    "text",
    [
        *("", "true", "null", '"1"', "[1]", "NaN", "Infinity", "-1", "-0.001", "1.0001", "1e999", "{", "1 1"),
        *('{"reward": true}', '{"reward": "1"}', '{"reward": NaN}', '{"reward": -1}', '{"score": 1}', "{}"),
        *('{"passed": 1}', '{"passed": 1, "total": 0}', '{"passed": 5, "total": 4}', '{"passed": true, "total": 1}'),
        *('{"passed": -1, "total": -1}', "9" * 5000, "[" * 60000, " " * (1 << 17)),
    ],
)
def test_bad_json_is_no_reward_even_beside_a_good_txt(tmp_path: Path, text: str) -> None:
    (tmp_path / "reward.json").write_text(text)
    (tmp_path / "reward.txt").write_text("1")
    with pytest.raises(NoReward, match=r"reward\.json"):
        read(tmp_path)


@pytest.mark.parametrize("text", ["", "nan", "inf", "-1", "2", "1 of 2", "true", "0x1", "1" * 2000])
def test_bad_txt_is_no_reward(tmp_path: Path, text: str) -> None:
    (tmp_path / "reward.txt").write_text(text)
    with pytest.raises(NoReward, match=r"reward\.txt"):
        read(tmp_path)


def test_no_file_link_fifo_folder_and_bytes(tmp_path: Path) -> None:
    with pytest.raises(NoReward, match="neither"):
        read(tmp_path)
    reward = tmp_path / "reward.json"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "reward.json").write_text("1")
    (tmp_path / "link").symlink_to("other")
    with pytest.raises(NoReward, match="cannot be read"):
        read(tmp_path / "link")
    (tmp_path / "elsewhere").write_text("1")
    reward.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NoReward, match="cannot be read"):
        read(tmp_path)
    reward.unlink()
    os.mkfifo(reward)
    with pytest.raises(NoReward, match="regular file"):
        read(tmp_path)
    reward.unlink()
    reward.mkdir()
    with pytest.raises(NoReward, match="regular file"):
        read(tmp_path)
    reward.rmdir()
    reward.write_bytes(b"\xff\xff")
    with pytest.raises(NoReward, match="UTF-8"):
        read(tmp_path)
