"""`qwengyre eval`: a run of no training steps and one evaluation."""

import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from qwengyre.cli.shared import Words, app, configured, out
from qwengyre.cli.train import launch
from qwengyre.config import Config, Policy
from qwengyre.errors import ConfigError, RunError


@app.command(short_help="Score a model on held-out tasks, without training.")
def eval(
    words: Words,
    run_dir: Annotated[Path | None, typer.Option(help="Folder of the run; default runs/eval-<config>-<time>.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the evaluation that --run-dir holds.")] = False,
    tasks: Annotated[bool, typer.Option("--tasks", help="List every task, however many.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One object, and nothing else, on standard output.")] = False,
) -> None:
    """Score a model on tasks, without training: model.name=FOLDER takes a checkpoint."""
    from qwengyre.cluster.folder import RunFolder
    from qwengyre.observe import evaluation

    config, name = configured(words)
    config = only_evaluation(config)
    if resume and run_dir is None:
        raise ConfigError("--resume needs --run-dir: the folder of the evaluation to continue")
    folder = RunFolder(run_dir or Path("runs") / f"eval-{name}-{time.strftime('%m%d-%H%M%S')}")
    folder.check(config, resume=resume)
    launch(config, folder, resume=resume, told=Console(stderr=True, highlight=False) if as_json else out)
    report = evaluation.report(folder.path)
    if as_json:
        print(json.dumps(report, indent=1))
    else:
        evaluation.show(out, report, every_task=tasks)
    if not report["n"] and not report["greedy"]:
        raise RunError(f"all {report['dropped']} executions were dropped: scores.jsonl in {folder.path} says why")


def only_evaluation(config: Config) -> Config:
    """The same configuration with no steps, one evaluation, and every cell in rollout."""
    once = {"before": True, "after": False, "every": 0}
    changes = {
        "run": config.run.model_copy(update={"steps": 0}),
        "eval": config.eval.model_copy(update=once),
        "policy": Policy(),
    }
    return config.model_copy(update=changes)
