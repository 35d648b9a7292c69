"""`qwengyre sim`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qwengyre.cli.shared import app, out, told_apart
from qwengyre.config import overlaid, resolve
from qwengyre.errors import ConfigError

if TYPE_CHECKING:
    from qwengyre.observe.timeline import Timeline
    from qwengyre.sim.compare import Answer, Question
    from qwengyre.sim.workload import Workload


@app.command()
def sim(  # noqa: PLR0913
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="WORKLOAD|section.key=value", help="A JSON file, or a shipped workload's name."),
    ] = None,
    policy: Annotated[list[str] | None, typer.Option(help="elastic, colocate, async, ...; may be repeated.")] = None,
    a: Annotated[int, typer.Option(min=0, help="Cells that train in async; default: the fastest split.")] = 0,
    trace: Annotated[Path | None, typer.Option(help="CSV: group,member,work_s,tokens_per_s.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the executions, and of what goes wrong.")] = 0,
    sweep: Annotated[list[str] | None, typer.Option(help="a=1,2,3 or section.key=value,value,...; repeatable.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="A picture (.png, .svg, .pdf) of the timelines or the sweep.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="An array, one object a policy, and nothing else.")] = False,
) -> None:
    """Simulate policies in virtual time: seconds, no GPU."""
    from qwengyre.sim.compare import USUAL, Question, compare

    if sweep:
        asked = _Asked(words or [], policy or USUAL, a, seed, trace)
        _sweep(asked, sweep, plot, as_json)
        return
    question = Question(_workload(words or []), seed, trace)
    if as_json and not plot:
        answers = compare(question, policy or USUAL, a)
        print(json.dumps([answer.result.plain() for answer in answers], indent=1))
    else:
        answers = _simulate(question, policy or USUAL, a, plot, quiet=as_json)
        if as_json:
            print(json.dumps([answer.result.plain() for answer in answers], indent=1))


def _workload(words: list[str]) -> "Workload":
    """A workload's name or file and `section.key=value` words, told apart."""
    from qwengyre.sim import workload

    files, overrides = told_apart(words)
    sources = [str(file) for file in files] or [workload.DEFAULT]
    if len(sources) > 1:
        raise ConfigError(f"'{sources[1]}': give one workload, and section.key=value words")
    return resolve(overlaid(workload.read(sources[0]), overrides), workload.Workload)


@dataclass(frozen=True)
class _Asked:
    """What a sweep varies."""

    words: list[str]
    policies: Sequence[str]
    a: int
    seed: int
    trace: Path | None


def _sweep(asked: _Asked, axes: list[str], plot: Path | None, as_json: bool) -> None:
    """Every combination of the axes, as a table or JSON, and as a picture."""
    from qwengyre.sim import sweep
    from qwengyre.sim.compare import Question, compare

    points = list[sweep.Point]()
    for setting in sweep.settings(axes):
        words = [f"{key}={value}" for key, value in setting.items() if key != "a"]
        question = Question(_workload([*asked.words, *words]), asked.seed, asked.trace)
        answers = compare(question, asked.policies, int(setting.get("a", asked.a)))
        points.append(sweep.Point({key: sweep.number(value) for key, value in setting.items()}, answers))
    if as_json:
        print(json.dumps([row for point in points for row in point.plain()], indent=1))
    else:
        out.print(*sweep.table(points), sep="\n", soft_wrap=True)
    if plot:
        from qwengyre.sim import plot as pictures

        pictures.sweep(plot, points)


def _simulate(
    question: "Question", policies: Sequence[str], a: int, plot: Path | None, *, quiet: bool
) -> list["Answer"]:
    """Table and timelines, the latter to one scale."""
    from qwengyre.observe.timeline import Timeline
    from qwengyre.sim.compare import compare

    lines = [Timeline() for _ in policies]
    answers = compare(question, policies, a, lambda i: lines[i].see_state)
    if plot:
        from qwengyre.sim import plot as pictures

        strips = zip(answers, lines, strict=True)
        pictures.timelines(plot, [pictures.Strip(x.label, t.cells, t.live, t.end) for x, t in strips])
    if not quiet:
        _show(question, answers, lines)
    return answers


def _show(question: "Question", answers: "list[Answer]", lines: "list[Timeline]") -> None:
    from qwengyre.sim.report import table

    work, until = question.workload, max(line.end for line in lines)
    out.print(
        f"{work.name or 'workload'}: {work.rl.steps} steps of {work.rl.groups_per_step} groups of "
        f"{work.rl.execs_per_group}, mu {work.rl.mu}, phi {work.rl.phi}; {work.cluster.cells} cells of "
        f"{work.cluster.slots_per_cell} slots, seed {question.seed}",
        soft_wrap=True,
    )
    for i, (answer, line) in enumerate(zip(answers, lines, strict=True)):
        out.print("", answer.label, *line.draw(100, 0.0, until, legend=i + 1 == len(lines)), sep="\n")
    out.print("", *table(answers), sep="\n", soft_wrap=True)
