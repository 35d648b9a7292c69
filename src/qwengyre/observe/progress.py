"""The run on the terminal: a live table where there is a terminal, plain lines where there is none.

Reads what control's `status` says and nothing else, so it can never hold the run up.
"""

import time
from typing import Any, Protocol

from rich.console import Console
from rich.live import Live
from rich.table import Table

QUIET_S = 10.0
"""A plain line at least so often while something is going on."""


class View(Protocol):
    """What the driver shows its status to."""

    def __call__(self, status: dict[str, Any]) -> None: ...
    def say(self, line: str) -> None: ...
    def close(self) -> None: ...


def view(console: Console) -> View:
    """The live view on a terminal, else plain lines."""
    return LiveView(console) if console.is_terminal else PlainView(console)


def step_line(row: dict[str, Any]) -> str:
    """One finished step in one line."""
    optimizer = f"grad norm {row['actor/grad_norm']:.4f}" if row["actor/optimizer_step"] else "no gradient"
    return (
        f"step {row['step'] + 1}: reward {row['reward/mean']:.3f} over {row['executions']} executions "
        f"({row['reward/live_groups']} of {len(row['groups'])} groups live), {optimizer}, "
        f"staleness {row['staleness/max']}, weights v{row['version']}, {row['time/step']:.0f} s"
    )


def now_line(status: dict[str, Any]) -> str:
    """What is going on, in one line."""
    if status["phase"] == "starting":
        return "; ".join(status["waiting"])
    running = status["placed"] - status["ended"]
    queued = status["dispatched"] - status["placed"]
    pending, claimed = status["backlog"]
    roles = " ".join(f"cell {cell}: {role}" for cell, role in status["roles"].items())
    training = f", {pending + claimed} micro-steps to train" if pending + claimed else ""
    return (
        f"[{status['at']:6.0f} s] step {min(status['step'] + 1, status['steps'])}/{status['steps']}, "
        f"executions: {running} running, {queued} queued, {status['ended']} ended{training}; {roles}"
    )


class PlainView:
    """Lines: each finished step, and now and then what is going on."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown = 0
        self._last, self._last_at = "", 0.0

    def __call__(self, status: dict[str, Any]) -> None:
        rows = status.get("rows", [])
        for row in rows[self._shown :]:
            self.say(step_line(row))
        self._shown = max(self._shown, len(rows))
        line = now_line(status)
        key = line.partition("]")[2] or line
        if key != self._last and time.monotonic() - self._last_at > QUIET_S:
            self._last, self._last_at = key, time.monotonic()
            self.say(line)

    def say(self, line: str) -> None:
        """Print one line at once, never wrapped."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Nothing to put back."""


class LiveView:
    """A table of finished steps with a moving line below it."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=4, transient=False)
        self._live.start()

    def __call__(self, status: dict[str, Any]) -> None:
        table = Table(box=None, pad_edge=False, caption=now_line(status), caption_justify="left")
        for column in ("step", "reward", "executions", "grad norm", "staleness", "weights", "seconds"):
            table.add_column(column, justify="right")
        for row in status.get("rows", [])[-12:]:
            table.add_row(
                str(row["step"] + 1),
                f"{row['reward/mean']:.3f}",
                str(row["executions"]),
                f"{row['actor/grad_norm']:.4f}" if row["actor/optimizer_step"] else "-",
                str(row["staleness/max"]),
                f"v{row['version']}",
                f"{row['time/step']:.0f}",
            )
        self._live.update(table)

    def say(self, line: str) -> None:
        """Print a line above the table."""
        self._live.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._live.stop()
