"""`qwengyre replay`."""

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qwengyre.cli.shared import app, out
from qwengyre.config import overlaid, resolve
from qwengyre.errors import ConfigError

if TYPE_CHECKING:
    from qwengyre.sim.calibrate import Ran
    from qwengyre.sim.compare import Answer
    from qwengyre.sim.recorded import Recorded
    from qwengyre.sim.run import Result

MOST_CALLS = 500
"""Executions whose calls are read to see how calls slow each other down."""


@app.command(short_help="Simulate a recorded run: as it was, and as it could be.")
def replay(
    run_dir: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run.")],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="section.key=value", help="Of a simulated workload: rl.phi=1.")
    ] = None,
    policy: Annotated[list[str] | None, typer.Option(help="elastic, colocate, async, ...; may be repeated.")] = None,
    cells: Annotated[int, typer.Option(min=0, help="Elastic cells; default: as recorded.")] = 0,
    a: Annotated[int, typer.Option(min=0, help="Cells that train in async; default: the fastest split.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One object, and nothing else.")] = False,
) -> None:
    """Simulate a recorded run: first as it was, with the error of each quantity, then as it could have been."""
    from qwengyre.sim.compare import Question, compare
    from qwengyre.sim.recorded import errors
    from qwengyre.sim.run import measure
    from qwengyre.sim.workload import Workload

    changes = [*(words or []), *([f"cluster.cells={cells}"] if cells else [])]
    found = _recorded(run_dir, [word for word in changes if word.startswith("rate.")])
    again = measure("recorded", found.plan, found.workload, found.source)
    rows = errors(found.result, again)
    answers = list["Answer"]()
    if policy or changes:
        workload = resolve(overlaid(found.workload.model_dump(), changes), Workload)
        answers = compare(Question(workload, given=found.source), policy or ["elastic", "colocate", "async"], a)
    if as_json:
        _print_json(found.result, again, rows, answers)
    else:
        _print(found, rows, answers)


def _recorded(folder: Path, rate_words: list[str]) -> "Recorded":
    """The run in a folder. How executions slow each other down: from its calls, or from `rate.` words."""
    from qwengyre.cluster.journal import read, read_plan
    from qwengyre.sim import calibrate
    from qwengyre.sim.recorded import recorded
    from qwengyre.sim.workload import Rate

    path = folder / "journal.jsonl"
    if not path.exists():
        raise ConfigError(f"{folder} holds no run: there is no journal.jsonl in it")
    plan, entries = read_plan(path), [(entry.event, entry.actions) for entry in read(path)]
    timeout_s = _timeout(folder)
    alone = recorded(plan, entries, Rate(), timeout_s)
    files = sorted((folder / "calls").glob("*.calls"))
    rate = calibrate.fit(_calls(files[:MOST_CALLS]), alone.active_s * min(1.0, MOST_CALLS / max(1, len(files))))
    rate = resolve(overlaid({"rate": rate.model_dump()}, rate_words).get("rate", {}), Rate)
    return recorded(plan, entries, rate, timeout_s)


def _timeout(folder: Path) -> float:
    try:
        values: dict[str, Any] = tomllib.loads((folder / "config.toml").read_text())
        return float(values["harness"]["timeout_s"])
    except (OSError, KeyError, ValueError):
        return float("inf")


def _calls(files: Sequence[Path]) -> "list[Ran]":
    """When and where each recorded call ran."""
    from qwengyre.gateway.journal import read_calls
    from qwengyre.sim.calibrate import Ran

    found = list[Ran]()
    for file in files:
        for call in read_calls(file).calls:
            times, stretches = call.timings, call.stretches
            if stretches and "done" in times:
                ran = Ran(
                    stretches[-1].engine, times["done"] - times.get("running_s", 0.0), times["done"], len(call.output)
                )
                found.append(ran)
    return found


def _print(found: "Recorded", rows: list[tuple[str, float, float, float]], answers: "list[Answer]") -> None:
    from qwengyre.sim.report import table

    rate = found.workload.rate
    out.print(
        f"{found.plan.steps} recorded steps; of an execution {rate.env_frac:.0%} is spent in tools, and each further "
        f"call on an engine makes the others {rate.alpha:.1%} slower",
        soft_wrap=True,
    )
    out.print(f"\n{'quantity':<22}{'recorded':>14}{'simulated':>14}{'error':>9}")
    for name, was, now, error in rows:
        out.print(f"{name:<22}{was:>14.6g}{now:>14.6g}{error:>9.1%}")
    if answers:
        out.print("", *table(answers), sep="\n", soft_wrap=True)


def _print_json(
    real: "Result", again: "Result", rows: list[tuple[str, float, float, float]], answers: "list[Answer]"
) -> None:
    errors = {name: round(error, 6) for name, _, _, error in rows}
    what_if = [answer.result.plain() for answer in answers]
    value = {"recorded": real.plain(), "simulated": again.plain(), "error": errors, "what_if": what_if}
    print(json.dumps(value, indent=1))
