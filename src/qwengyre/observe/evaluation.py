"""One evaluation for human eyes and for programs, from its run folder."""

import json
import tomllib
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

FEW = 24
"""Tasks that are listed one by one unless all are asked for."""


def report(run_dir: Path) -> dict[str, Any]:
    """The newest evaluation of a run: {model, tasks_of, split, temperature, mean, low, high, n, greedy, dropped, kinds,
    tasks, seconds, run_dir}. Means are None where there was nothing. Raises OSError, IndexError: there is none."""
    row = json.loads((run_dir / "evals.jsonl").read_text().splitlines()[-1])
    config = tomllib.loads((run_dir / "config.toml").read_text())
    measured = config["eval"]
    keys = ("mean", "low", "high", "n")
    greedy = {key: row[f"eval/greedy/{key}"] for key in keys} if "eval/greedy/mean" in row else None
    temperature = config["rl"]["temperature"] if measured["temperature"] == "auto" else measured["temperature"]
    return {
        "schema_version": row["schema_version"],
        "model": config["model"]["name"],
        "step": row["step"],
        "tasks_of": measured["path"] or config["tasks"]["path"] or measured["kind"] or config["tasks"]["kind"],
        "split": measured["split"],
        "temperature": temperature,
        **{key: row.get(f"eval/{key}", 0 if key == "n" else None) for key in keys},
        "greedy": greedy,
        "dropped": row["eval/dropped"],
        "kinds": row["kinds"],
        "tasks": row["tasks"],
        "seconds": row["time/eval"],
        "run_dir": str(run_dir),
    }


def show(out: Console, found: dict[str, Any], *, every_task: bool) -> None:
    """Print: all tasks together, each kind, each task."""
    out.print(f"{found['model']} on {len(found['tasks'])} tasks of {found['tasks_of']}", soft_wrap=True, markup=False)
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    columns = (f"mean at T={found['temperature']:g}", "95% interval", "samples", "greedy", "95% interval", "samples")
    for column in columns:
        table.add_column(column, justify="right")
    whole = {"sampled": found if found["n"] else None, "greedy": found["greedy"]}
    rows = {"all": whole, **(found["kinds"] if len(found["kinds"]) > 1 else {})}
    for name, each in rows.items():
        table.add_row(name, *_cells(each["sampled"]), *_cells(each["greedy"]))
    out.print(table)
    if every_task or len(found["tasks"]) <= FEW:
        out.print(_tasks(found["tasks"]))
    else:
        out.print(f"{len(found['tasks'])} tasks: --tasks lists each, evals.jsonl holds each score")
    if found["dropped"]:
        out.print(f"{found['dropped']} executions were dropped (no verdict, which is no 0): scores.jsonl says why")
    out.print(f"in {found['seconds']:.0f} s; intervals are over tasks; run folder {found['run_dir']}", soft_wrap=True)


def _cells(estimate: dict[str, Any] | None) -> tuple[str, str, str]:
    if not estimate:
        return "-", "-", "0"
    return f"{estimate['mean']:.3f}", f"{estimate['low']:.3f} to {estimate['high']:.3f}", str(estimate["n"])


def _tasks(tasks: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("task", "mean", "scores", "greedy"):
        table.add_column(column, no_wrap=column != "scores")
    for task in tasks:
        scores = task["sampled"]
        mean = f"{sum(scores) / len(scores):.3f}" if scores else "-"
        lost = f" ({task['dropped']} dropped)" if task["dropped"] else ""
        said = " ".join(f"{score:.2f}" for score in scores) + lost
        table.add_row(task["task"], mean, said, " ".join(f"{score:.2f}" for score in task["greedy"]))
    return table
