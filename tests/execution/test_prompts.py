"""Prompts of verl and slime as tasks: what is asked, what the grader takes for the answer, what is refused."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qwengyre.errors import ConfigError, MachineError, TaskError
from qwengyre.execution.tasksets.build import build
from qwengyre.types import Limits, Query

QUESTION = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 6 x 7?"}]


def verl(folder: Path, *rows: dict[str, Any]) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(list(rows)), folder / "train.parquet")
    return folder / "train.parquet"


def slime(folder: Path, *rows: Any) -> Path:
    path = folder / "dapo.jsonl"
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return path


def row(answer: Any = "42", **fields: Any) -> dict[str, Any]:
    """As verl's preparation of GSM8K writes them."""
    reward = {"style": "rule", "ground_truth": answer}
    extra = {"split": "train", "index": 0}
    return {
        "data_source": "openai/gsm8k",
        "prompt": QUESTION,
        "ability": "math",
        "reward_model": reward,
        "extra_info": extra,
    } | fields


def read(kind: str, path: Path | str, folder: Path, limits: Limits, count: int = 8) -> list[Query]:
    tasks = build(kind, path=str(path), count=count, split="train", seed=0, folder=folder / "tasks", limits=limits)
    return [tasks[n] for n in range(len(tasks))]


def test_rows_of_verl(tmp_path: Path, limits: Limits) -> None:
    path = verl(tmp_path, *[row(str(n)) for n in range(5)])
    found = read("verl", path, tmp_path, limits, count=3)
    assert [query.name for query in found] == [f"qwengyre/00000{n}-openai-gsm8k" for n in range(3)]
    assert found[0].instruction == "Be brief.\n\nWhat is 6 x 7?"
    assert [q.name for q in read("verl", path, tmp_path, limits)][:3] == [q.name for q in found]
    verl(tmp_path, row("7"))
    assert score(read("verl", path, tmp_path, limits)[0], "7", tmp_path) == 1.0, "another file is another set"


def test_lines_of_slime(tmp_path: Path, limits: Limits) -> None:
    path = slime(
        tmp_path, {"prompt": "What is 1 + 1?", "label": 2}, "\n", {"prompt": QUESTION, "label": "42", "metadata": {}}
    )
    found = read("slime", path, tmp_path, limits)
    assert [query.instruction for query in found] == ["What is 1 + 1?", "Be brief.\n\nWhat is 6 x 7?"]
    assert [score(query, "2", tmp_path) for query in found] == [1.0, 0.0]


def score(query: Query, answer: str | None, folder: Path) -> float:
    """The grader as a process, as a verifier runs it."""
    work, logs = folder / "work", folder / "logs"
    for made in (work, logs):
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
    if answer is not None:
        (work / "answer.txt").write_text(answer)
    env = os.environ | {"TASK_WORKDIR": str(work), "TASK_LOGS": str(logs)}
    subprocess.run([sys.executable, "-I", "-S", Path(query.tests) / "grade.py"], env=env, check=True)
    return json.loads((logs / "reward.json").read_text())["reward"]


@pytest.mark.parametrize(
    ("expected", "right", "wrong"),
    [
        ("42", ["42", "So it is\n42.", "I say #### 42", r"\boxed{42}", "$42.0$", " 42 \n\n"], ["41", "", "42 or 43"]),
        ("1,000", ["1000", "$1,000", "1000.00"], ["1", "1.000.0"]),
        ("0.5", ["1/2", ".5", r"thus \boxed{\boxed{1/2}}"], ["2", "1/0"]),
        (
            r"\frac{1}{x}",
            [r"\boxed{\frac{1}{x}}", r"#### \frac{1}{x}"],
            [r"\boxed{\frac{1}{y}}", r"\boxed{\frac{1}{x}"],
        ),
        ("Paris", ["paris", "It is\nParis."], ["1e999999999", "London"]),
    ],
)
def test_what_counts_as_the_answer(
    tmp_path: Path, limits: Limits, expected: str, right: list[str], wrong: list[str]
) -> None:
    (query,) = read("slime", slime(tmp_path, {"prompt": "?", "label": expected}), tmp_path, limits)
    assert {answer: score(query, answer, tmp_path) for answer in right} == dict.fromkeys(right, 1.0)
    assert {answer: score(query, answer, tmp_path) for answer in wrong} == dict.fromkeys(wrong, 0.0)
    assert score(query, None, tmp_path) == 0.0


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{not json\n", "line 1 is no JSON"),
        ({"prompt": "x"}, "line 1: expected an object with prompt and label"),
        ({"prompt": "x", "label": None}, "the answer is None"),
        ({"prompt": "x", "label": True}, "the answer is True"),
        ({"prompt": "x", "label": ["a"]}, r"the answer is \['a'\]"),
        ({"prompt": "", "label": "a"}, "the prompt is ''"),
        ({"prompt": [{"role": "assistant", "content": "I said"}], "label": "a"}, "expected system and user messages"),
        ({"prompt": [{"role": "user", "content": [{"type": "image"}]}], "label": "a"}, "expected system and user"),
        ("\n", "no row in it"),
    ],
)
def test_a_line_that_is_no_task_is_named(tmp_path: Path, limits: Limits, line: Any, says: str) -> None:
    with pytest.raises(TaskError, match=says):
        read("slime", slime(tmp_path, line), tmp_path, limits)


def test_a_file_that_is_none_of_verls_is_named(tmp_path: Path, limits: Limits, monkeypatch: pytest.MonkeyPatch) -> None:
    model = {"style": "model", "ground_truth": "42"}
    with pytest.raises(TaskError, match=r"row 1: reward_model\.style='model'"):
        read("verl", verl(tmp_path, row(), row(reward_model=model)), tmp_path, limits)
    with pytest.raises(TaskError, match="no column reward_model"):
        read("verl", verl(tmp_path, {"prompt": QUESTION}), tmp_path, limits)
    with pytest.raises(TaskError, match="is no Parquet file"):
        read("verl", slime(tmp_path, {"prompt": "x", "label": "y"}), tmp_path, limits)
    with pytest.raises(TaskError, match="no such file"):
        read("verl", tmp_path / "none", tmp_path, limits)
    with pytest.raises(ConfigError, match=r"tasks.kind='slime' needs tasks.path"):
        read("slime", "", tmp_path, limits)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MachineError, match=r"pip install 'qwengyre\[export\]'"):
        read("verl", slime(tmp_path, {"prompt": "x", "label": "y"}), tmp_path, limits)
