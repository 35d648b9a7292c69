"""The command line: thin words over `cluster`, `observe` and `config`. Its contract is in docs/cli.md.

Exit codes: 0 the run ended as configured; 1 our failure; 2 the user's mistake; 130 Ctrl-C.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from qwengyre.config import Config, load, overlaid, resolve
from qwengyre.errors import ConfigError, QwenGyreError

if TYPE_CHECKING:
    from qwengyre.cluster.folder import RunFolder
    from qwengyre.sim.compare import Question
    from qwengyre.sim.workload import Workload

app = typer.Typer(
    help="Online RL of LLM agents inside unmodified harnesses.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
harness = typer.Typer(help="Real harnesses: pinned versions in a cache of their own.", no_args_is_help=True)
app.add_typer(harness, name="harness", rich_help_panel=None)
out = Console(highlight=False, width=None if sys.stdout.isatty() else 160)

Words = Annotated[list[str], typer.Argument(metavar="CONFIG.toml... [section.key=value]...", show_default=False)]


@app.command()
def train(
    words: Words,
    run_dir: Annotated[Path | None, typer.Option(help="Folder of the run; default runs/<config>-<time>.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run that --run-dir holds.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, print the plan, run nothing.")] = False,
) -> None:
    """Train a model on tasks, by online RL inside a harness."""
    from qwengyre.cluster.folder import RunFolder

    config, name = _config(words)
    if resume and run_dir is None:
        raise ConfigError("--resume needs --run-dir: the folder of the run to continue")
    folder = RunFolder(run_dir or Path("runs") / f"{name}-{time.strftime('%m%d-%H%M%S')}")
    folder.check(config, resume=resume)
    if dry_run:
        _dry_run(config, folder.path)
        return
    _train(config, folder, resume)


@app.command()
def sim(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[WORKLOAD] [section.key=value]...", help="A JSON file, or a shipped workload's name."),
    ] = None,
    policy: Annotated[list[str] | None, typer.Option(help="elastic, colocate, async, ...; may be repeated.")] = None,
    a: Annotated[int, typer.Option(min=0, help="Cells that train in async; default: the fastest split.")] = 0,
    trace: Annotated[Path | None, typer.Option(help="CSV: group,member,work_s,tokens_per_s.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the executions, and of what goes wrong.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="An array, one object a policy, and nothing else.")] = False,
) -> None:
    """Simulate policies in virtual time with the scheduler of `train`: seconds, and no GPU."""
    from qwengyre.sim.compare import USUAL, Question, compare

    workload = _workload(words or [])
    question = Question(workload, seed, trace)
    if as_json:
        answers = compare(question, policy or USUAL, a)
        print(json.dumps([answer.result.plain() for answer in answers], indent=1))
    else:
        _simulate(question, policy or USUAL, a)


@app.command()
def inspect(
    run_dir: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run.")],
    execution: Annotated[str, typer.Argument(metavar="[EXECUTION]", help="One execution, e.g. 3-0.")] = "",
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Rebuild it all and compare.")] = False,
) -> None:
    """Show a run, or the tree, roles, selection and score of one execution."""
    from qwengyre.observe import inspect as inspection

    inspection.show(out, run_dir, execution, _waiting(run_dir), rebuild=rebuild)


@app.command()
def doctor() -> None:
    """Say what this machine can run, and what to install."""
    from qwengyre.observe import doctor as diagnosis

    diagnosis.show(out)


@harness.command("install")
def harness_install(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="As `harness list` names them.")],
) -> None:
    """Install harnesses, each in a folder of its own. One that is there is left as it is."""
    from qwengyre import profiles
    from qwengyre.execution.harnesses.install import install
    from qwengyre.observe.phases import phases

    wanted = [profiles.read(name) for name in names]
    with phases(out) as told:
        for profile in wanted:
            out.print(f"{profile.name} {profile.version}: {install(profile, told).folder}", soft_wrap=True)


@harness.command("list")
def harness_list() -> None:
    """List the harnesses that have a profile, and which are installed."""
    from qwengyre.observe.doctor import harnesses

    out.print(*harnesses(), sep="\n", soft_wrap=True, markup=False)


def _waiting(run_dir: Path) -> list[str]:
    """Who waits for what in a run that has not ended, since when, as its journal says up to now."""
    from qwengyre.cluster.journal import replay
    from qwengyre.schedule.waiting import waiting

    path = run_dir / "journal.jsonl"
    return waiting(replay(path)) if path.exists() and not (run_dir / "summary.json").exists() else []


def _workload(words: list[str]) -> "Workload":
    """A workload's name or file and `section.key=value` words, told apart."""
    from qwengyre.sim import workload

    overrides = [w for w in words if "=" in w and not Path(w).exists()]
    sources = [w for w in words if w not in overrides] or [workload.DEFAULT]
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


def _config(words: list[str]) -> tuple[Config, str]:
    """Configuration files and `section.key=value` words, told apart; and a name for the run's folder."""
    overrides = [w for w in words if "=" in w and not Path(w).exists()]
    files = [Path(w) for w in words if w not in overrides]
    return load(files, overrides), files[0].stem if files else "run"


def _dry_run(config: Config, folder: Path) -> None:
    import tempfile

    from qwengyre.cluster.prepare import plan_of, prepare
    from qwengyre.observe.phases import phases

    with tempfile.TemporaryDirectory(prefix="qwengyre-") as scratch, phases(out) as told:
        prepared = prepare(config, Path(scratch), told)
    plan = plan_of(config)
    out.print(f"would run in {folder}", soft_wrap=True)
    out.print(f"model     {config.model.name} ({prepared.model}), window {prepared.window} tokens", soft_wrap=True)
    out.print(f"tasks     {config.tasks.kind}, {prepared.num_tasks} of them; harness {config.harness.kind}")
    out.print(f"sandbox   {config.sandbox.kind}: {prepared.enforcement}", soft_wrap=True)
    out.print(
        f"plan      {plan.steps} steps of {plan.groups_per_step} groups of {plan.group_size} executions, "
        f"bursts of {plan.mu}, look-ahead {plan.phi}; policy {config.policy.kind}, "
        f"cells: {plan.cells} elastic, {plan.standalone} standalone",
        soft_wrap=True,
    )


def _train(config: Config, folder: "RunFolder", resume: bool) -> None:
    import tempfile

    from qwengyre.cluster import token
    from qwengyre.cluster.prepare import prepare
    from qwengyre.observe.phases import phases
    from qwengyre.observe.progress import view

    out.print(f"run folder {folder.path}", soft_wrap=True)
    with tempfile.TemporaryDirectory(prefix="qwengyre-") as scratch, phases(out) as told:
        prepared = prepare(config, Path(scratch), told)
    out.print(f"sandbox {config.sandbox.kind}: {prepared.enforcement}", soft_wrap=True)
    folder.claim(config, resume=resume)
    token.protect(config.cluster.address)
    from qwengyre.cluster import ray

    shown = view(out)
    try:
        summary = ray.train(config, folder, prepared, view=shown)
    except KeyboardInterrupt:
        print(f"interrupted; the same command with --run-dir {folder.path} --resume continues it", file=sys.stderr)
        raise
    finally:
        shown.close()
        folder.release()
    rewards = ", ".join(f"{r:.3f}" for r in summary["reward"])
    out.print(f"done: {summary['steps']} steps in {summary['seconds']:.0f} s, reward {rewards}")
    out.print(f"look at it: qwengyre inspect {folder.path}", soft_wrap=True)


def main() -> None:
    """The entry point: one line for every error, and the exit code of the contract."""
    try:
        app()
    except QwenGyreError as error:
        _fail(str(error), error.exit_code)
    except Exception as error:
        if os.environ.get("QWENGYRE_TRACEBACK"):
            traceback.print_exc()
        cause = (str(error).splitlines() or [""])[0]
        _fail(f"internal: {type(error).__name__}: {cause} (QWENGYRE_TRACEBACK=1 shows where)", 1)


def _fail(line: str, code: int) -> None:
    print(f"error: {line}", file=sys.stderr)
    sys.exit(code)
