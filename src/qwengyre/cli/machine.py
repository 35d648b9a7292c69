"""`qwengyre doctor` and `qwengyre harness`: what this machine has."""

from typing import Annotated

import typer

from qwengyre.cli.shared import app, out

harness = typer.Typer(help="Real harnesses: pinned versions in a cache of their own.", no_args_is_help=True)
app.add_typer(harness, name="harness", rich_help_panel=None)


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
