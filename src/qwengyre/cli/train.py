"""`qwengyre train`."""

import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from qwengyre.cli.shared import Words, app, configured, out
from qwengyre.config import Config
from qwengyre.errors import ConfigError

if TYPE_CHECKING:
    from qwengyre.cluster.folder import RunFolder


@app.command()
def train(
    words: Words,
    run_dir: Annotated[Path | None, typer.Option(help="Folder of the run; default runs/<config>-<time>.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run that --run-dir holds.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, print the plan, run nothing.")] = False,
) -> None:
    """Train a model on tasks, by online RL inside a harness."""
    from qwengyre.cluster.folder import RunFolder

    config, name = configured(words)
    if resume and run_dir is None:
        raise ConfigError("--resume needs --run-dir: the folder of the run to continue")
    folder = RunFolder(run_dir or Path("runs") / f"{name}-{time.strftime('%m%d-%H%M%S')}")
    folder.check(config, resume=resume)
    if dry_run:
        _dry_run(config, folder.path)
        return
    launch(config, folder, resume=resume, told=out)
    _tell(folder.path)


def _dry_run(config: Config, folder: Path) -> None:
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
    if (rule := plan.evaluations).count:
        said = {"before": rule.before, f"every {rule.every} steps": rule.every, "after": rule.after}
        moments = ", ".join(moment for moment, is_due in said.items() if is_due)
        out.print(f"eval      {moments}: {rule.count} executions of {config.eval.count} tasks each")


def launch(config: Config, folder: "RunFolder", *, resume: bool, told: Console) -> None:
    """The run, from its folder to its summary. `told`: where its progress goes."""
    from qwengyre.cluster import token
    from qwengyre.cluster.prepare import prepare
    from qwengyre.observe.phases import phases
    from qwengyre.observe.progress import view
    from qwengyre.observe.trackers import Tracked, tracker

    beside = tracker(folder.path, tensorboard=config.observe.tensorboard)
    told.print(f"run folder {folder.path}", soft_wrap=True, markup=False)
    with tempfile.TemporaryDirectory(prefix="qwengyre-") as scratch, phases(told) as progress:
        prepared = prepare(config, Path(scratch), progress)
    told.print(f"sandbox {config.sandbox.kind}: {prepared.enforcement}", soft_wrap=True)
    folder.claim(config, resume=resume)
    token.protect(config.cluster.address)
    from qwengyre.cluster import ray

    cells = config.cells.count + config.cells.standalone
    told.print(f"starting Ray, the gateway, a sandbox box and {cells} cell{'s' * (cells != 1)} on this machine ...")
    shown = Tracked(view(told), beside) if beside else view(told)
    try:
        ray.train(config, folder, prepared, view=shown)
    except KeyboardInterrupt:
        print(f"interrupted; the same command with --run-dir {folder.path} --resume continues it", file=sys.stderr)
        raise
    finally:
        shown.close()
        folder.release()


def _tell(run_dir: Path) -> None:
    """The summary of the run, as `inspect` tells it again."""
    from qwengyre.cli.inspect import course_of
    from qwengyre.observe.ending import summary_lines

    lines = summary_lines(run_dir, course_of(run_dir))
    out.print("", "done", *lines, sep="\n", soft_wrap=True, markup=False)
