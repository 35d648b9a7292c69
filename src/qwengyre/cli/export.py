"""`qwengyre export`."""

from pathlib import Path
from typing import Annotated

import typer

from qwengyre.cli.shared import app, out


@app.command()
def export(
    run_dir: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run.")],
    to: Annotated[Path | None, typer.Option("--out", help="The file; default DIR/trajectories.parquet.")] = None,
) -> None:
    """Write a run's trajectories to Parquet: ids, mask, log-probs, versions, advantage, role, provenance."""
    from qwengyre.observe.export import export as write

    path = to or run_dir / "trajectories.parquet"
    found = write(run_dir, path)
    out.print(
        f"{path}: {found.trajectories} trajectories of {found.executions} executions, {found.tokens} tokens, "
        f"{found.targets} of them targets",
        soft_wrap=True,
        markup=False,
    )
