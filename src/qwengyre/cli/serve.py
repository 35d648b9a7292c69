"""`qwengyre serve`: an engine and a gateway for agents that are started by hand."""

import asyncio
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qwengyre.cli.shared import Words, app, configured, out

if TYPE_CHECKING:
    from qwengyre.cluster.serve import Door
    from qwengyre.profiles import Profile


@app.command(short_help="Record exact traces of agents that you start yourself.")
def serve(
    words: Words,
    run_dir: Annotated[
        Path | None, typer.Option(help="Folder of the traces; default runs/serve-<config>-<time>.")
    ] = None,
    executions: Annotated[int, typer.Option(min=1, help="How many runs of an agent, each with a URL of its own.")] = 1,
) -> None:
    """Record exact traces of agents that you start yourself, until Ctrl-C."""
    from qwengyre.cluster import serve as serving
    from qwengyre.cluster.folder import RunFolder
    from qwengyre.model import load
    from qwengyre.observe.phases import phases

    config, name = configured(words)
    folder = RunFolder(run_dir or Path("runs") / f"serve-{name}-{time.strftime('%m%d-%H%M%S')}")
    folder.check(config, resume=False)
    with phases(out) as progress:
        model = load.resolve(config.model.name, progress=progress)
    folder.claim(config, resume=False)

    def told(doors: list["Door"]) -> None:
        tell(folder.path, config.model.name, doors)

    try:
        sealed = asyncio.run(serving.serve(config, folder.path, model, executions, told))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    finally:
        folder.release()
    for execution, totals in sealed.items():
        if totals.calls:
            said = f"{totals.calls} calls, {totals.tokens_in} tokens in, {totals.tokens_out} out"
            out.print(f"{execution}: {said}; look at it: qwengyre inspect {folder.path} {execution}", soft_wrap=True)


def tell(run_dir: Path, model: str, doors: list["Door"]) -> None:
    """Print where agents are pointed to, and write a starter for each harness that has a profile."""
    from qwengyre import profiles

    out.print(f"traces go to {run_dir}", soft_wrap=True, markup=False)
    for door in doors:
        root = door.base_url.removesuffix("/v1")
        out.print(f"execution {door.execution}", markup=False)
        out.print(f"  OPENAI_BASE_URL={door.base_url} OPENAI_API_KEY={door.api_key}", soft_wrap=True, markup=False)
        out.print(f"  ANTHROPIC_BASE_URL={root} ANTHROPIC_API_KEY={door.api_key}", soft_wrap=True, markup=False)
        for name in profiles.names():
            profile = profiles.read(name)
            starter = write_starter(run_dir / "start" / door.execution, profile, door, model)
            out.print(f"  {name}: sh {starter} {_program(profile)} ...", soft_wrap=True, markup=False)
    out.print("Ctrl-C ends it")


def write_starter(folder: Path, profile: "Profile", door: "Door", model: str) -> Path:
    """A shell script that sets what the harness needs and starts the command that it is given. The harness's settings
    are in a home of their own below `folder`: nobody's own settings are touched."""
    home = folder / profile.name
    values = {
        **{name: str(value) for name, value in profile.launch.args.items()},
        "base_url": door.base_url,
        "root_url": door.base_url.removesuffix("/v1"),
        "api_key": door.api_key,
        "model": model,
        "home": str(home),
    }
    for name, text in profile.launch.files.items():
        file = home / name.removeprefix("~/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(_filled(text, values))
    env = {name: _filled(text, values) for name, text in profile.launch.env.items()}
    env |= {"HOME": str(home)} if profile.launch.files else {}
    lines = [f"export {name}={shlex.quote(text)}" for name, text in env.items()]
    starter = folder / f"{profile.name}.sh"
    folder.mkdir(parents=True, exist_ok=True)
    starter.write_text("\n".join([f"# {profile.about}", *lines, 'exec "$@"', ""]))
    return starter


def _filled(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace("{" + name + "}", value)
    return text


def _program(profile: "Profile") -> str:
    """As one calls it, whether it is installed by us or not."""
    from qwengyre.execution.harnesses.install import found

    there = found(profile)
    return there.program if there else profile.name
