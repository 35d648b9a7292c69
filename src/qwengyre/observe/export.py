"""Every selected trajectory of a run as a row of a Parquet file. The schema is documented in docs/export.md.

Reads the run folder only, one execution at a time, so that memory does not grow with the run. Needs pyarrow.
"""

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qwengyre.errors import ConfigError, MachineError
from qwengyre.observe.branching import Selection, rules, selection
from qwengyre.observe.traced import group_of, worth
from qwengyre.trajectory.select import Pick, trajectory
from qwengyre.trajectory.tree import Tree
from qwengyre.types import ExecutionId, Ids, ModelCall

SCHEMA_VERSION = 1
ROWS = 64
"""Rows that are written at once."""


@dataclass(frozen=True)
class Exported:
    """What was written."""

    trajectories: int
    executions: int
    tokens: int
    targets: int


def export(run_dir: Path, out: Path) -> Exported:
    """Write `out`, complete or not at all. Raises ConfigError for a folder without a run, MachineError without pyarrow.

    Executions that have settled and called the model are in it, of groups that trained and of those that wait or were
    void; those of evaluations are not.
    """
    parquet, schema = _parquet()
    if not (run_dir / "config.toml").exists():
        raise ConfigError(f"{run_dir} holds no run (no config.toml): give the folder that `qwengyre train` named")
    config = tomllib.loads((run_dir / "config.toml").read_text())
    about = {"schema_version": SCHEMA_VERSION, "model": config["model"]["name"], "config": config}
    found = _Counts()
    part = out.with_name(f".{out.name}.part")
    try:
        named = schema.with_metadata({b"qwengyre": json.dumps(about).encode()})
        with parquet.ParquetWriter(part, named, compression="zstd") as writer:
            for batch in _batches(found.counted(_rows(run_dir, config))):
                writer.write_table(_table(batch, named))
        part.rename(out)
    except OSError as error:
        raise MachineError(f"{out} cannot be written ({error.strerror}): give another --out") from None
    finally:
        part.unlink(missing_ok=True)
    return Exported(found.trajectories, len(found.executions), found.tokens, found.targets)


class _Counts:
    def __init__(self) -> None:
        self.executions: set[str] = set()
        self.trajectories = self.tokens = self.targets = 0

    def counted(self, rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for row in rows:
            self.executions.add(row["execution"])
            self.trajectories += 1
            self.tokens += len(row["ids"])
            self.targets += row["targets"]
            yield row


def _rows(run_dir: Path, config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    scores, steps = _lines(run_dir / "scores.jsonl"), _steps(run_dir)
    by_group: dict[int, list[dict[str, Any]]] = {}
    for line in scores:
        execution = ExecutionId.parse(line["execution"])
        if execution.evaluation < 0:
            by_group.setdefault(execution.group, []).append(line)
    for group, members in sorted(by_group.items()):
        advantages = worth(group_of(members, group), config["rl"])
        for line in sorted(members, key=lambda line: ExecutionId.parse(line["execution"]).member):
            path = run_dir / "calls" / f"{line['execution']}.calls"
            if path.exists():
                found = selection(path, *rules(config))
                advantage = advantages.get(found.execution.member)
                yield from _of_execution(found, line, advantage, steps.get(group))


def _of_execution(
    found: Selection, line: Mapping[str, Any], advantage: float | None, step: int | None
) -> Iterator[dict[str, Any]]:
    whole = sum(pick.tokens for pick in found.picks)
    calls = {call.call: call for call in found.log.calls}
    for number, pick in enumerate(found.picks):
        role = found.roles[pick.leaf]
        path = trajectory(found.tree, pick, found.execution)
        weight = None if advantage is None else advantage / whole
        yield {
            "execution": line["execution"],
            "group": found.execution.group,
            "member": found.execution.member,
            "trajectory": number,
            "step": step,
            "task": line["task"],
            "ids": path.ids,
            "mask": path.selected,
            "logprobs": path.logprobs,
            "versions": _versions(found.tree, path.rows),
            "calls": _calls(found.tree, path.rows),
            "temperature": path.temperature,
            "targets": pick.tokens,
            "advantage": advantage,
            "weight": weight,
            "score": line["score"],
            "verdict": line["verdict"],
            "ending": line["ending"],
            "role": role.role,
            "evidence": role.evidence,
            "mark": role.mark,
            "leaf": pick.leaf,
            "requests": [
                _request(calls[n]) for n in dict.fromkeys(found.tree.calls[row] for row in _sampled(found, pick))
            ],
            "work": line.get("work", ""),
        }


def _sampled(found: Selection, pick: Pick) -> list[int]:
    return [row for row in found.tree.path(pick.leaf) if row in found.tree.versions]


def _versions(tree: Tree, rows: Ids) -> Ids:
    """The weight version that sampled each token, -1 for context."""
    versions = np.full(len(rows), -1, np.int32)
    for row in np.unique(rows[rows >= 0]).tolist():
        start, at = 0, np.flatnonzero(rows == row)
        for end, version in tree.versions[row]:
            versions[at[start:end]] = version
            start = end
    return versions


def _calls(tree: Tree, rows: Ids) -> Ids:
    """The model call that each token is an output of, -1 for context."""
    of_row = np.array([*tree.calls, -1], np.int32)
    return of_row[rows]


def _request(call: ModelCall) -> dict[str, Any]:
    return {
        "call": call.call,
        "id": str(call.request.get("id", "")),
        "thread": call.thread,
        "match": call.match,
        "finish": call.finish,
        "received": call.timings.get("received"),
        "engines": list(dict.fromkeys(stretch.engine for stretch in call.stretches)),
    }


def _steps(run_dir: Path) -> dict[int, int]:
    """Group -> the training step that it was part of."""
    return {group: row["step"] for row in _lines(run_dir / "metrics.jsonl") for group in row["groups"]}


def _batches(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    batch: list[dict[str, Any]] = []
    for row in rows:
        batch.append(row)
        if len(batch) == ROWS:
            yield batch
            batch = []
    if batch:
        yield batch


def _parquet() -> tuple[Any, Any]:
    """pyarrow.parquet, and the schema."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MachineError("`qwengyre export` needs pyarrow: pip install 'qwengyre[export]'") from None
    i32, f32, f64, text = pyarrow.int32(), pyarrow.float32(), pyarrow.float64(), pyarrow.string()
    many = pyarrow.list_
    request = [("call", i32), ("id", text), ("thread", text), ("match", text), ("finish", text)]
    request += [("received", f64), ("engines", many(text))]
    columns = [
        *[("execution", text), ("group", i32), ("member", i32), ("trajectory", i32), ("step", i32), ("task", text)],
        *[("ids", many(i32)), ("mask", many(pyarrow.bool_())), ("logprobs", many(f32))],
        *[("versions", many(i32)), ("calls", many(i32)), ("temperature", f64), ("targets", i32)],
        *[("advantage", f64), ("weight", f64), ("score", f64), ("verdict", text), ("ending", text)],
        *[("role", text), ("evidence", text), ("mark", text), ("leaf", i32)],
        *[("requests", many(pyarrow.struct(request))), ("work", text)],
    ]
    return parquet, pyarrow.schema(columns)


def _table(rows: list[dict[str, Any]], schema: Any) -> Any:
    import pyarrow

    arrays = [pyarrow.array([row[field.name] for row in rows], field.type) for field in schema]
    return pyarrow.table(arrays, schema=schema)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
