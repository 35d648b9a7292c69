"""The run on the terminal: a live page where there is a terminal, plain lines where there is none.

Reads what control's `status` says and nothing else, so it can never hold the run up.
"""

import time
from collections.abc import Callable
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from qwengyre.observe.lines import (
    checkpoint_line,
    counted,
    evaluation_line,
    executions_of,
    move_line,
    now_line,
    place_of,
    step_line,
    tokens_line,
    trend,
    waiting_lines,
)
from qwengyre.observe.story import STEPS, Story, warnings
from qwengyre.observe.timeline import MARGIN, span

QUIET_S = 10.0
"""A plain line at most so often while something is going on."""
STUCK_S = 30.0
"""When nothing changes for so long, the plain view says who waits for what, and again after as long."""
CAUSES = 3
"""Sentences of who waits for what, the nearest cause first."""
STEPS_SHOWN = 8
MOVES_SHOWN = 3
WIDEST = 120
"""Columns of the live page, at most."""


class View(Protocol):
    """What the driver shows its status to."""

    def __call__(self, status: dict[str, Any]) -> None: ...
    def say(self, line: str) -> None: ...
    def close(self) -> None: ...


def view(console: Console) -> View:
    """The live view on a terminal, else plain lines."""
    return LiveView(console) if console.is_terminal else PlainView(console)


class PlainView:
    """Lines: each finished step, evaluation and move, each warning once, now and then what is going on, and when
    nothing is, why."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._story = Story()
        self._shown: dict[str, int] = {}
        self._warned: set[str] = set()
        self._last, self._last_at = "", 0.0

    def __call__(self, status: dict[str, Any]) -> None:
        self._story.see(status)
        self._news(status, "deaths", str)
        self._news(status, "evaluations", evaluation_line)
        self._news(status, "moves", move_line)
        self._news(status, "checkpoints", checkpoint_line)
        self._news(status, "rows", step_line)
        self._warn(status)
        line = now_line(status)
        if line != self._last and time.monotonic() - self._last_at > QUIET_S:
            self._last, self._last_at = line, time.monotonic()
            self.say(self._now(status, line))
        elif line == self._last and time.monotonic() - self._last_at > STUCK_S:
            self._last_at = time.monotonic()
            self.say("waiting: " + "; ".join(waiting_lines(status, CAUSES)))

    def _now(self, status: dict[str, Any], line: str) -> str:
        if status["phase"] == "starting":
            return line
        story, tokens = self._story, tokens_line(self._story.rates)
        more = [f"tokens/s: {tokens}" if tokens else ""]
        steps = counted(min(STEPS, len(story.rows)), "step")
        more += [f"reward {story.reward:.3f} over the newest {steps}" if story.reward is not None else ""]
        more += [f"about {span(story.left_s)} left" if story.left_s else ""]
        return f"[{status['at']:6.0f} s] " + "; ".join([line, *filter(None, more)])

    def _news(self, status: dict[str, Any], key: str, line: Callable[[dict[str, Any]], str]) -> None:
        """Rows that came since the last look. A control that restarted may show fewer."""
        rows = status.get(key, [])
        for row in rows[self._shown.get(key, 0) :]:
            self.say(line(row))
        self._shown[key] = max(self._shown.get(key, 0), len(rows))

    def _warn(self, status: dict[str, Any]) -> None:
        """Each once while it holds; one that comes again is told again."""
        found = warnings(status)
        for name in found.keys() - self._warned:
            self.say(f"WARNING: {found[name]}")
        self._warned = set(found)

    def say(self, line: str) -> None:
        """Print one line at once, never wrapped."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Nothing to put back."""


class LiveView:
    """One page that is drawn anew: where the run stands, what its cells do, the newest steps, what went wrong."""

    def __init__(self, console: Console) -> None:
        self._story = Story()
        self._live = Live(console=console, refresh_per_second=4, transient=False)
        self._live.start()

    def __call__(self, status: dict[str, Any]) -> None:
        self._story.see(status)
        console = self._live.console
        self._live.update(page(self._story, status, min(WIDEST, console.width), console.height))

    def say(self, line: str) -> None:
        """Print a line above the page."""
        self._live.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._live.stop()


def page(story: Story, status: dict[str, Any], width: int, height: int = 40) -> Group:
    """The whole live page. Every line fits into `width`, or is cut there; the newest steps fill up `height`."""
    if status["phase"] == "starting":
        return Group(*_texts(waiting_lines(status, CAUSES), width))
    lines = [*_where(story, status), "", *story.timeline.draw(width, story.window(width - MARGIN)), ""]
    below = [evaluation_line(row) for row in status.get("evaluations", [])[-MOVES_SHOWN:]]
    below += [checkpoint_line(row) for row in status.get("checkpoints", [])[-1:]]
    below += [*status.get("deaths", [])[-CAUSES:], *(move_line(row) for row in status.get("moves", [])[-MOVES_SHOWN:])]
    below += [f"waiting: {line}" for line in waiting_lines(status, 1)]
    warned = [Text(f"WARNING: {line}") for line in warnings(status).values()]  # these may take a second line
    room = min(STEPS_SHOWN, max(1, height - len(lines) - len(below) - 2 * len(warned) - 2))
    return Group(*_texts(lines, width), *([_steps(story, room)] if story.rows else []), *_texts(below, width), *warned)


def _texts(lines: list[str], width: int) -> list[Text]:
    return [Text(line[:width], no_wrap=True) for line in lines]


def _where(story: Story, status: dict[str, Any]) -> list[str]:
    """Where the run stands, in four lines."""
    left = f", about {span(story.left_s)} left" if story.left_s else ""
    reward = "reward      after the first step"
    if story.reward is not None:
        rewards = [row["reward/mean"] for row in story.rows]
        reward = f"reward      {story.reward:.3f} over the newest {counted(min(STEPS, len(rewards)), 'step')}"
        reward += f"; the first {rewards[0]:.3f}; step by step, in tenths: {trend(rewards, 40)}"
    left_to_train, tokens = sum(status["backlog"]), tokens_line(story.rates)
    training = f"; {counted(left_to_train, 'micro-step')} to train" if left_to_train else ""
    return [
        f"{place_of(status)}; {span(status['at'])} so far{left}; weights v{status['version']}",
        reward,
        f"executions  {executions_of(status)}{training}",
        f"tokens/s    {tokens or 'none now'}",
    ]


def _steps(story: Story, most: int) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("step", "reward", "live", "executions", "grad norm", "staleness", "weights", "time"):
        table.add_column(column, justify="right")
    for row in story.rows[-most:]:
        table.add_row(
            str(row["step"] + 1),
            f"{row['reward/mean']:.3f}",
            f"{row['reward/live_groups']}/{len(row['groups'])}",
            str(row["executions"]),
            f"{row['actor/grad_norm']:.4f}" if row["actor/optimizer_step"] else "-",
            str(row["staleness/max"]),
            f"v{row['version']}",
            span(row["time/step"]),
        )
    return table
