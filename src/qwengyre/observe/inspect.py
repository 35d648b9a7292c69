"""A run folder for human eyes: steps and executions of a run, or the tree of one execution down to its requests.

Reads the folder only; works on a run that is going on, that ended, or that died.
"""

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from qwengyre.errors import ConfigError
from qwengyre.gateway.journal import read_calls
from qwengyre.observe.branching import rules, selection
from qwengyre.observe.drawing import draw
from qwengyre.observe.lines import evaluation_line, move_line
from qwengyre.observe.traced import trace
from qwengyre.types import ModelCall, Stretch

TEXT = 160
"""Characters of a message that are shown."""


def show(
    out: Console, run_dir: Path, execution: str, waiting: Sequence[str] = (), *, rebuild: bool, token: int | None = None
) -> None:
    """Print. `waiting`: who waits for what, as the scheduler's journal says. `token`: only where this one of the
    execution's trained tokens comes from. Raises ConfigError for a folder that holds no run, or what it lacks."""
    if not (run_dir / "config.toml").exists():
        raise ConfigError(f"{run_dir} holds no run (no config.toml): give the folder that `qwengyre train` named")
    if token is not None and not execution:
        raise ConfigError(f"--token {token} needs an execution: `qwengyre inspect {run_dir}` lists them")
    if execution:
        _execution(out, run_dir, execution, token)
    else:
        _run(out, run_dir, waiting)
    if rebuild:
        from qwengyre.observe.rebuild import check

        out.print(str(check(run_dir, lambda line: out.print(line, soft_wrap=True))), soft_wrap=True)


def _run(out: Console, run_dir: Path, waiting: Sequence[str]) -> None:
    steps = _table("step", "weights", "reward", "executions", "calls", "grad norm", "mismatch kl", "staleness", "s")
    for row in _lines(run_dir / "metrics.jsonl"):
        steps.add_row(
            str(row["step"] + 1),
            f"v{row['version']}",
            f"{row['reward/mean']:.3f}",
            str(row["executions"]),
            str(row["calls"]),
            f"{row['actor/grad_norm']:.4f}",
            f"{row['mismatch_kl/mean']:.1e}",
            str(row["staleness/max"]),
            f"{row['time/step']:.0f}",
        )
    out.print(steps)
    executions = _table("execution", "task", "ending", "verdict", "score", "calls", "tokens", "weights", "reason")
    for line in _lines(run_dir / "scores.jsonl"):
        log = _calls(run_dir, line["execution"])
        versions = sorted({s.version for call in log for s in call.stretches})
        executions.add_row(
            line["execution"],
            escape(line["task"]),
            line["ending"],
            line["verdict"],
            f"{line['score']:.3f}",
            str(len(log)),
            str(sum(len(call.output) for call in log)),
            " ".join(f"v{v}" for v in versions),
            escape(line["reason"]),
        )
    out.print(executions)
    for row in _lines(run_dir / "evals.jsonl"):
        out.print(evaluation_line(row), soft_wrap=True, markup=False, emoji=False)
    for row in _lines(run_dir / "moves.jsonl"):
        out.print(move_line(row), soft_wrap=True, markup=False, emoji=False)
    ended = (run_dir / "summary.json").exists()
    out.print("the run ended as configured" if ended else "the run is going on, or was interrupted (--resume)")
    for sentence in () if ended else waiting:
        out.print(f"waiting: {sentence}", soft_wrap=True, markup=False, emoji=False)


def _execution(out: Console, run_dir: Path, name: str, token: int | None) -> None:
    path = run_dir / "calls" / f"{name}.calls"
    if not path.exists():
        raise ConfigError(
            f"{run_dir} has no execution '{name}' with model calls: `qwengyre inspect {run_dir}` lists them"
        )
    config = tomllib.loads((run_dir / "config.toml").read_text())
    scores, found = _lines(run_dir / "scores.jsonl"), selection(path, *rules(config))
    if token is not None:
        for line in trace(found, token, scores, config["rl"]):
            out.print(line, soft_wrap=True, markup=False, emoji=False)
        return
    score = {line["execution"]: line for line in scores}.get(name)
    if score:
        said = f"{score['task']}, {score['ending']}, {score['verdict']} {score['score']:.3f} {score['reason']}"
        out.print(f"{name}: {said}", soft_wrap=True, markup=False, emoji=False)
    log, tree = found.log, found.tree
    title = f"{len(log.calls)} calls, {tree.num_tokens} distinct tokens, {'sealed' if log.sealed else 'open'}"
    out.print(draw(found, title), soft_wrap=True)
    for line in found.lines():
        out.print(line, soft_wrap=True, markup=False, emoji=False)
    for call in log.calls:
        _call(out, call, delivered=call.call in log.delivered)


def _stretch(stretch: Stretch) -> str:
    """Who made a part of an output, under which weights; and on which older keys and values, where they were kept."""
    kept = f" on keys and values of v{stretch.kv_version}" if 0 <= stretch.kv_version != stretch.version else ""
    return f"v{stretch.version}{kept} at {stretch.engine} {stretch.end - stretch.start} tokens ({stretch.cause})"


def _call(out: Console, call: ModelCall, *, delivered: bool) -> None:
    stretches = ", ".join(map(_stretch, call.stretches))
    mean = float(np.mean(call.logprobs)) if len(call.logprobs) else 0.0
    said = "" if delivered else ", never delivered"
    out.print(
        f"call {call.call}: {call.match}, {len(call.suffix)} new tokens in, {len(call.output)} out: {stretches}; "
        f"mean log-prob {mean:.3f}{said}",
        soft_wrap=True,
    )
    for message in call.request.get("messages", []):
        out.print(
            f"    {message.get('role', '?'):>9}: {_short(message.get('text', ''))}",
            soft_wrap=True,
            markup=False,
            emoji=False,
        )
    out.print(f"    assistant: {_short(call.response.get('raw', ''))}", soft_wrap=True, markup=False, emoji=False)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=column != "reason")
    return table


def _calls(run_dir: Path, name: str) -> Sequence[ModelCall]:
    path = run_dir / "calls" / f"{name}.calls"
    return read_calls(path).calls if path.exists() else ()


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    text = "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text[: TEXT + 1])  # no escape sequences
    return text if len(text) <= TEXT else text[:TEXT] + "..."


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
