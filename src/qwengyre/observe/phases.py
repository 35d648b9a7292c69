"""What a command does before the run, on the terminal: bars where there is a terminal, plain lines where there is none.

A phase says what is done, how much of it, how fast, and how long it still takes; at its end how long it took.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bars

from qwengyre.types import Phase, Progress

LINE_S = 5.0
"""A plain line at most so often for each phase, between its first and its last."""
RATED_S = 0.5
"""A rate is guessed after this; before it, it would be noise."""


@contextmanager
def phases(console: Console, clock: Callable[[], float] = time.monotonic) -> Iterator[Progress]:
    """Who shows phases on `console` meanwhile."""
    if not console.is_terminal:
        yield PlainPhases(console, clock)
        return
    columns = TextColumn("{task.description}"), BarColumn(20), TextColumn("{task.fields[said]}")
    with Bars(*columns, console=console) as bars:
        yield LivePhases(bars, clock)


def said(phase: Phase, seconds: float) -> str:
    """How far `phase` is after `seconds`: `31.0 of 93.0 MB, 6.2 MB/s, 10 s left`, or how long it took."""
    if phase.over:
        return f"{_amount(phase.done, phase.unit)} in {_time(seconds)}" if phase.done else f"done in {_time(seconds)}"
    size = _amount(phase.total or phase.done, phase.unit)
    if not phase.done:
        return size if phase.total else ""
    if phase.total:
        size = f"{_amount(phase.done, phase.unit).split()[0]} of {size}"
    if seconds < RATED_S:
        return size
    rate = phase.done / seconds
    left = f", {_time((phase.total - phase.done) / rate)} left" if phase.total > phase.done else ""
    speed = f", {_amount(rate, phase.unit)}/s" if phase.unit == "B" else ""
    return f"{size}{speed}{left}"


class PlainPhases:
    """A line when a phase begins, now and then while it lasts, and when it is over."""

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        self._console = console
        self._clock = clock
        self._began: dict[str, float] = {}
        self._shown: dict[str, float] = {}

    def __call__(self, phase: Phase) -> None:
        now = self._clock()
        first = phase.what not in self._began
        if first and phase.over:
            self._say(phase.what)
            return
        seconds = now - self._began.setdefault(phase.what, now)
        if first or phase.over or now - self._shown[phase.what] >= LINE_S:
            self._shown[phase.what] = now
            detail = said(phase, seconds)
            self._say(f"{phase.what}: {detail}" if detail else phase.what)
        if phase.over:
            del self._began[phase.what]

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class LivePhases:
    """A bar for each phase; it stays, with the time that it took."""

    def __init__(self, bars: Bars, clock: Callable[[], float]) -> None:
        self._bars = bars
        self._clock = clock
        self._open: dict[str, tuple[TaskID, float]] = {}

    def __call__(self, phase: Phase) -> None:
        if phase.over and phase.what not in self._open:
            self._bars.console.print(phase.what, markup=False, highlight=False, soft_wrap=True)
            return
        now = self._clock()
        if phase.what not in self._open:
            self._open[phase.what] = self._bars.add_task(phase.what, total=None, said=""), now
        task, began = self._open[phase.what]
        total = (phase.total or phase.done or 1.0) if phase.over else phase.total or None
        done = total if phase.over else phase.done
        self._bars.update(task, total=total, completed=done, said=said(phase, now - began))
        if phase.over:
            del self._open[phase.what]


def _amount(value: float, unit: str) -> str:
    if unit != "B":
        return f"{value:.0f} {unit}".rstrip()
    for name, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.1f} {name}"
    return f"{value:.0f} B"


def _time(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
