"""`qwengyre inspect`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qwengyre.cli.shared import app, out
from qwengyre.errors import JournalError

if TYPE_CHECKING:
    from qwengyre.observe.ending import Course


@app.command()
def inspect(
    run_dir: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run.")],
    execution: Annotated[str, typer.Argument(metavar="[EXECUTION]", help="One execution, e.g. 3-0.")] = "",
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Rebuild it all and compare.")] = False,
    token: Annotated[int | None, typer.Option(help="Where the N-th token that EXECUTION trains comes from.")] = None,
) -> None:
    """Show a run, or one execution down to its tokens."""
    from qwengyre.observe import inspect as inspection
    from qwengyre.observe.ending import summary_lines

    inspection.show(out, run_dir, execution, _waiting(run_dir), rebuild=rebuild, token=token)
    if not execution and (run_dir / "summary.json").exists():
        out.print("", *summary_lines(run_dir, course_of(run_dir)), sep="\n", soft_wrap=True, markup=False)


def course_of(run_dir: Path) -> "Course":
    """What the journal of a run says of its cells; only a note where another version of the program wrote it."""
    from qwengyre.cluster.journal import read, read_plan
    from qwengyre.observe.ending import Course, course

    path = run_dir / "journal.jsonl"
    try:
        return course(read_plan(path), (entry.event for entry in read(path)))
    except (JournalError, OSError, ValueError) as error:
        return Course(note=f"no timeline: {error}")


def _waiting(run_dir: Path) -> list[str]:
    """Who waits for what in a run that has not ended, since when, as its journal says up to now."""
    from qwengyre.cluster.journal import replay
    from qwengyre.schedule.waiting import waiting

    path = run_dir / "journal.jsonl"
    return waiting(replay(path)) if path.exists() and not (run_dir / "summary.json").exists() else []
