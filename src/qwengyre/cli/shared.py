"""What all commands share: the application, its console, and how words become a configuration."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from qwengyre.config import Config, load

app = typer.Typer(
    help="Online RL of LLM agents inside unmodified harnesses.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
out = Console(highlight=False, width=None if sys.stdout.isatty() else 160)

Words = Annotated[list[str], typer.Argument(metavar="CONFIG.toml|section.key=value", show_default=False)]


def configured(words: list[str]) -> tuple[Config, str]:
    """Configuration files and `section.key=value` words, told apart; and a name for the run's folder."""
    files, overrides = told_apart(words)
    return load(files, overrides), files[0].stem if files else "run"


def told_apart(words: list[str]) -> tuple[list[Path], list[str]]:
    """(files, `section.key=value` words)."""
    overrides = [w for w in words if "=" in w and not Path(w).exists()]
    return [Path(w) for w in words if w not in overrides], overrides
