"""The run on the terminal: a live table where there is a terminal, plain lines where there is none.

Reads what control's `status` says and nothing else, so it can never hold the run up.
"""

import time
from collections.abc import Callable
from typing import Any, Protocol

from rich.console import Console
from rich.live import Live
from rich.table import Table

QUIET_S = 10.0
"""A plain line at most so often while something is going on."""
STUCK_S = 30.0
"""When nothing changes for so long, the plain view says who waits for what, and again after as long."""
CAUSES = 3
"""Sentences of who waits for what, the nearest cause first."""


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


def move_line(row: dict[str, Any]) -> str:
    """One move of a cell in one line."""
    to = {"rollout": "to rollout", "training": "to training"}.get(row["role"], row["role"])
    outcome = "" if row["outcome"] == row["role"] else f" FAILED, now {row['outcome']}: {row['failed']};"
    phases = ", ".join(f"{name} {seconds:.2f}" for name, seconds in row["phases"].items())
    return (
        f"cell {row['cell']} {to} at {row['at']:.0f} s:{outcome} {row['live_executions']} live executions, "
        f"{row['calls_continued']} calls continued with {row['tokens_kept']} tokens kept, "
        f"KV of {row['kv_moved']} tokens moved, of {row['kv_recomputed']} recomputed; {row['seconds']:.2f} s: {phases}"
    )


def waiting_lines(status: dict[str, Any]) -> list[str]:
    """Who waits for what, since when; first the cells in transit with the phase that they are in."""
    phases = [f"cell {cell} is in phase '{phase}' of its move" for cell, phase in status.get("phases", {}).items()]
    return [*phases, *status["waiting"]][:CAUSES]


class PlainView:
    """Lines: each finished step and each move, now and then what is going on, and when nothing is, why."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: dict[str, int] = {}
        self._last, self._last_at = "", 0.0

    def __call__(self, status: dict[str, Any]) -> None:
        self._news(status, "deaths", str)
        self._news(status, "moves", move_line)
        self._news(status, "rows", step_line)
        line = now_line(status)
        key = line.partition("]")[2] or line
        if key != self._last and time.monotonic() - self._last_at > QUIET_S:
            self._last, self._last_at = key, time.monotonic()
            self.say(line)
        elif key == self._last and time.monotonic() - self._last_at > STUCK_S:
            self._last_at = time.monotonic()
            self.say("waiting: " + "; ".join(waiting_lines(status)))

    def _news(self, status: dict[str, Any], key: str, line: Callable[[dict[str, Any]], str]) -> None:
        """Rows that came since the last look. A control that restarted may show fewer."""
        rows = status.get(key, [])
        for row in rows[self._shown.get(key, 0) :]:
            self.say(line(row))
        self._shown[key] = max(self._shown.get(key, 0), len(rows))

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
        moves = [move_line(row) for row in status.get("moves", [])[-CAUSES:]]
        caption = "\n".join([*status.get("deaths", [])[-CAUSES:], *moves, now_line(status), *waiting_lines(status)])
        table = Table(box=None, pad_edge=False, caption=caption, caption_justify="left")
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
