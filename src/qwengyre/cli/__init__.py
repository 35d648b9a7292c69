"""The command line, a module a command: thin words over `cluster`, `observe` and `config`. Contract: docs/cli.md.

Exit codes: 0 the run ended as configured; 1 our failure; 2 the user's mistake; 130 Ctrl-C. Read `train.py` first.
"""

import os
import sys
import traceback
from typing import Any

import typer

from qwengyre.cli import evaluate, export, inspect, machine, replay, serve, sim, train
from qwengyre.cli.shared import app
from qwengyre.errors import QwenGyreError

__all__ = ["app", "evaluate", "export", "inspect", "machine", "main", "replay", "serve", "sim", "train"]

ORDER = ("sim", "train", "eval", "serve", "replay", "inspect", "export", "doctor")
"""Of `--help`: as a newcomer needs them."""
app.registered_commands.sort(key=lambda command: ORDER.index(command.callback.__name__) if command.callback else 0)


UsageError: Any = typer.BadParameter.__mro__[1]
"""What typer raises for words that it does not understand (its own name for it is private)."""


def main() -> None:
    """The entry point: one line for every error, and the exit code of the contract."""
    try:
        code = app(standalone_mode=False)
    except QwenGyreError as error:
        _fail(str(error), error.exit_code)
    except UsageError as error:
        _usage(error)
    except Exception as error:
        if os.environ.get("QWENGYRE_TRACEBACK"):
            traceback.print_exc()
        cause = (str(error).splitlines() or [""])[0]
        _fail(f"internal: {type(error).__name__}: {cause} (QWENGYRE_TRACEBACK=1 shows where)", 1)
    else:
        sys.exit(code if isinstance(code, int) else 0)


def _usage(error: Any) -> None:
    """One line for words that make no command; the whole help where none was given."""
    said = error.format_message()
    if "\n" in said:
        print(said)
        sys.exit(2)
    option = getattr(error, "option_name", "")
    if "." in option:
        key = option.lstrip("-")
        _fail(f"no option {option}: a key of the configuration is written without dashes, {key}=VALUE", 2)
    command = error.ctx.command_path if error.ctx else "qwengyre"
    _fail(f"{said[0].lower()}{said[1:].rstrip('.?')}: see `{command} --help`", 2)


def _fail(line: str, code: int) -> None:
    print(f"error: {line}", file=sys.stderr)
    sys.exit(code)
