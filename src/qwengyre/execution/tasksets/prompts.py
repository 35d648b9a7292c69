"""Prompts of other frameworks as tasks: rows of verl's Parquet files, and of slime's JSON lines.

Each row has a prompt and an answer that is a text. The harness writes `answer.txt`; the grader compares.
"""

import hashlib
import json
import re
import shlex
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from qwengyre.errors import MachineError, TaskError
from qwengyre.execution.tasksets.harbor import HarborTasks
from qwengyre.execution.tasksets.write import Task, write
from qwengyre.types import Limits

GRADER = Path(__file__).parent / "graders" / "answer.py"
FORMAT = 1
"""Raise it when what is written of a row changes: a set on disk of another format is not reused."""


class Row(NamedTuple):
    """What a task needs of a row; `where` names it in messages."""

    where: str
    source: str
    prompt: object
    answer: object


class PromptTasks(HarborTasks):
    """The first `count` rows of the file at `path`, of `kind` verl or slime; written under `folder` on first use."""

    def __init__(self, kind: str, path: Path, folder: Path, *, count: int, limits: Limits):
        """Raises TaskError for a file or row that cannot be read as such, MachineError without pyarrow (verl)."""
        if not path.is_file():
            raise TaskError(f"tasks.path={path}: no such file in {Path.cwd()}: tasks.kind='{kind}' reads one file")
        rows = islice(_verl(path) if kind == "verl" else _slime(path), count)
        tasks = [task(index, row) for index, row in enumerate(rows)]
        if not tasks:
            raise TaskError(f"tasks.path={path}: no row in it")
        name = f"{kind}-{FORMAT}-{_digest(path)}-{len(tasks)}"
        super().__init__(write(folder / name, tasks, grader=GRADER, agent_s=300.0), limits=limits)


def task(index: int, row: Row) -> Task:
    """A row as a task. Raises TaskError for one whose prompt or answer is no text."""
    answer = str(row.answer) if isinstance(row.answer, int | float) and not isinstance(row.answer, bool) else row.answer
    if not isinstance(answer, str) or not answer.strip():
        raise TaskError(f"{row.where}: the answer is {_short(row.answer)}: expected a text or a number")
    solve = f"printf %s {shlex.quote(answer)} > answer.txt"
    source = re.sub(r"[^a-z0-9]+", "-", row.source.lower()).strip("-")[:40] or "prompt"
    return Task(f"{index:06d}-{source}", _instruction(row), {}, {"answer": answer}, solve, "printf x > answer.txt")


def _verl(path: Path) -> Iterator[Row]:
    try:
        from pyarrow import ArrowInvalid, parquet
    except ImportError:
        raise MachineError("tasks.kind='verl' needs pyarrow: pip install 'qwengyre[export]'") from None
    try:
        file = parquet.ParquetFile(path)
    except ArrowInvalid as error:
        raise TaskError(f"{path} is no Parquet file: {str(error).splitlines()[0]}") from None
    names = set(file.schema_arrow.names)
    if missing := {"prompt", "reward_model"} - names:
        raise TaskError(
            f"{path}: no column {', '.join(sorted(missing))}: expected prompt and reward_model, as verl has them"
        )
    wanted = [name for name in ("data_source", "prompt", "reward_model") if name in names]
    number = 0
    for batch in file.iter_batches(256, columns=wanted):
        for row in batch.to_pylist():
            reward = row["reward_model"] or {}
            where = f"{path}, row {number}"
            if reward.get("style", "rule") != "rule":
                raise TaskError(f"{where}: reward_model.style={reward['style']!r}: only 'rule' can be graded here")
            yield Row(where, str(row.get("data_source") or ""), row["prompt"], reward.get("ground_truth"))
            number += 1


def _slime(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            try:
                row = json.loads(line)
            except ValueError as error:
                raise TaskError(f"{where} is no JSON: {error}") from None
            if not isinstance(row, dict) or not {"prompt", "label"} <= row.keys():
                raise TaskError(f"{where}: expected an object with prompt and label")
            yield Row(where, path.stem, row["prompt"], row["label"])


def _instruction(row: Row) -> str:
    """System and user texts, in order. There is nobody to have said what an assistant said."""
    if isinstance(row.prompt, str):
        texts = [row.prompt]
    elif isinstance(row.prompt, list):
        texts = [_text(row, message) for message in row.prompt]
    else:
        texts = []
    whole = "\n\n".join(text.strip() for text in texts if text.strip())
    if not whole or "\0" in whole:
        raise TaskError(f"{row.where}: the prompt is {_short(row.prompt)}: expected a text, or messages of texts")
    return whole


def _text(row: Row, message: Any) -> str:
    role, content = (message.get("role"), message.get("content")) if isinstance(message, dict) else (None, None)
    if role not in ("system", "user") or not isinstance(content, str):
        raise TaskError(f"{row.where}: the prompt holds {_short(message)}: expected system and user messages of text")
    return content


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "..."


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
