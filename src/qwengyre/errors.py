"""Errors that reach a user: what was given, what was expected, what to do next, in one line.

`ValueError` and `assert` remain for programmers; these classes are for people at a terminal. The command line
prints `str(error)` without a traceback and exits with `exit_code`.
"""

from difflib import get_close_matches


class QwenGyreError(Exception):
    """Something that a user reads. `exit_code` is 1 (ours) unless a subclass says otherwise."""

    exit_code: int = 1


class ConfigError(QwenGyreError):
    """The configuration cannot be run as written: the user's mistake, exit 2."""

    exit_code = 2


class TaskError(ConfigError):
    """A task folder cannot be read as written."""


class MachineError(ConfigError):
    """This machine lacks something the run needs (a sandbox, a model folder, a port, a writable folder)."""


class EngineError(QwenGyreError):
    """An engine failed in a way that re-queueing the call does not mend."""


class RefusedError(QwenGyreError):
    """A message that no longer holds: of an older step, incarnation or weight set. Whoever sent it looks again."""


class TransferError(QwenGyreError):
    """Tensors could not be pulled: their owner died, freed them, or does not answer."""


class StartingError(QwenGyreError):
    """The process has just (re)started and was not told yet what it is: the call is repeated."""


class RunError(QwenGyreError):
    """The run ended otherwise than configured; the message names who waited for what."""


class JournalError(QwenGyreError):
    """A journal is damaged before its last complete frame, or a replay of it differs from what it recorded."""


def nearest(name: str, known: list[str]) -> str:
    """`did you mean 'x'?` when a known name is close to `name`, else the list of known names."""
    close = get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else f"known: {', '.join(sorted(known))}"
