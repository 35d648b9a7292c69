"""`qwengyre sim`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qwengyre.cli.shared import app, out, told_apart
from qwengyre.config import overlaid, resolve
from qwengyre.errors import ConfigError

if TYPE_CHECKING:
    from qwengyre.sim.compare import Question
    from qwengyre.sim.workload import Workload


@app.command()
def sim(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="WORKLOAD|section.key=value", help="A JSON file, or a shipped workload's name."),
    ] = None,
    policy: Annotated[list[str] | None, typer.Option(help="elastic, colocate, async, ...; may be repeated.")] = None,
    a: Annotated[int, typer.Option(min=0, help="Cells that train in async; default: the fastest split.")] = 0,
    trace: Annotated[Path | None, typer.Option(help="CSV: group,member,work_s,tokens_per_s.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the executions, and of what goes wrong.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="An array, one object a policy, and nothing else.")] = False,
) -> None:
    """Simulate policies in virtual time: seconds, no GPU."""
    from qwengyre.sim.compare import USUAL, Question, compare

    workload = _workload(words or [])
    question = Question(workload, seed, trace)
    if as_json:
        answers = compare(question, policy or USUAL, a)
        print(json.dumps([answer.result.plain() for answer in answers], indent=1))
    else:
        _simulate(question, policy or USUAL, a)


def _workload(words: list[str]) -> "Workload":
    """A workload's name or file and `section.key=value` words, told apart."""
    from qwengyre.sim import workload

    files, overrides = told_apart(words)
    sources = [str(file) for file in files] or [workload.DEFAULT]
    if len(sources) > 1:
        raise ConfigError(f"'{sources[1]}': give one workload, and section.key=value words")
    return resolve(overlaid(workload.read(sources[0]), overrides), workload.Workload)


def _simulate(question: "Question", policies: Sequence[str], a: int) -> None:
    """Table and timelines, the latter to one scale."""
    from qwengyre.observe.timeline import Timeline
    from qwengyre.sim.compare import compare
    from qwengyre.sim.report import table

    work, lines = question.workload, [Timeline() for _ in policies]
    out.print(
        f"{work.name or 'workload'}: {work.rl.steps} steps of {work.rl.groups_per_step} groups of "
        f"{work.rl.execs_per_group}, mu {work.rl.mu}, phi {work.rl.phi}; {work.cluster.cells} cells of "
        f"{work.cluster.slots_per_cell} slots, seed {question.seed}",
        soft_wrap=True,
    )
    answers = compare(question, policies, a, lambda i: lines[i].see_state)
    until = max(line.end for line in lines)
    for i, (answer, line) in enumerate(zip(answers, lines, strict=True)):
        out.print("", answer.label, *line.draw(100, 0.0, until, legend=i + 1 == len(lines)), sep="\n")
    out.print("", *table(answers), sep="\n", soft_wrap=True)
