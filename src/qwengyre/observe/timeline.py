"""What the cells of a run did over time, as plain text: a row a cell, a character a slice of time.

    cell 0  ====//######\\====--//###
    cell 1  =======//###\\=======//##
    live    666654433321066665443322
    steps              1           2
            0 s         10 s

Fed in order of time with what is seen (`see`), or with a whole run's events (`of_run`); `draw` makes the text. Real
runs, the live view and the simulator share it. Pure ASCII, and pure: no clock, no terminal.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Self, TypeVar

from qwengyre.schedule.doing import Doing, doing
from qwengyre.schedule.events import Event
from qwengyre.schedule.state import Plan, State
from qwengyre.schedule.step import start, step

SIGNS: Mapping[str, str] = {
    Doing.ROLLOUT: "=",
    Doing.TRAINING: "#",
    Doing.TO_TRAINING: "/",
    Doing.TO_ROLLOUT: "\\",
    Doing.EVALUATION: "e",
    Doing.IDLE: "-",
    Doing.LOST: "x",
    Doing.AWAY: " ",
}
"""The character of each word of `schedule.doing`; a word that is not here is drawn as `?`."""

WEIGHTS: Mapping[str, float] = {Doing.TRAINING: 1.5, Doing.TO_TRAINING: 3.0, Doing.TO_ROLLOUT: 3.0, Doing.LOST: 1e9}
"""How much a second counts when a slice holds several things: what is short and matters is not to vanish."""

MARGIN = 8
"""Characters before the first slice of a row."""
MAX_CELLS = 24
"""Rows of cells that are drawn; of more, the first and the last ones."""
HIGH = 9
"""The row of numbers is one digit a slice."""
T = TypeVar("T", str, int)
UNITS = ((3600.0, "h"), (60.0, "min"), (1.0, "s"))


@dataclass
class Timeline:
    """Changes only, so it stays small. Times in seconds of the run, never falling."""

    cells: list[list[tuple[float, str]]] = field(default_factory=list[list[tuple[float, str]]])
    """For each cell, (since, what)."""
    live: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    """(since, executions dispatched and not ended): the waterlevel."""
    marks: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    """(when, steps finished by then)."""
    end: float = 0.0

    @classmethod
    def of_run(cls, plan: Plan, events: Iterable[Event]) -> Self:
        """A whole run's. Raises ValueError for events that cannot be."""
        timeline, state = cls(), start(plan)
        for event in events:
            state, _ = step(state, event)
            timeline.see_state(state)
        return timeline

    def see_state(self, state: State) -> None:
        """The scheduler's state as it is at `state.at`."""
        self.see(state.at, doing(state), state.waterlevel, state.finished_steps)

    def see(self, at: float, cells: Sequence[str], live: int, steps: int) -> None:
        """At `at` each cell does this, so many executions are live, and so many steps are finished."""
        at = self.end = max(at, self.end)
        self.cells += [[] for _ in range(len(cells) - len(self.cells))]
        for changes, what in zip(self.cells, cells, strict=False):
            if not changes or changes[-1][1] != what:
                changes.append((at, str(what)))
        if not self.live or self.live[-1][1] != live:
            self.live.append((at, live))
        before = self.marks[-1][1] if self.marks else 0
        if steps != before:
            self.marks.append((at, steps))

    def draw(self, width: int = 80, since: float = 0.0, until: float = 0.0, *, legend: bool = True) -> list[str]:
        """Lines of at most `width` characters for the time from `since` to `until` (0: the end; a later time leaves
        room, so that several runs can be drawn to one scale). None of an empty timeline."""
        until = until or self.end
        if not self.cells or until <= since:
            return []
        slices = max(8, width - MARGIN)
        edges = [since + (until - since) * i / slices for i in range(slices + 1)]
        rows = [_cell(changes, edges, self.end) for changes in self.cells]
        lines = [_row(f"cell {i}", rows[i]) if i >= 0 else "..." for i in self._shown()]
        top = max((n for _, n in self.live), default=0)
        lines.append(_row("live", _levels(self.live, edges, self.end, top)))
        lines += [_row("steps", row) for row in [_marks(self.marks, edges)] if row.strip()]
        lines.append(_row("", _axis(edges)))
        return [*lines, *([legend_line("".join(rows), top)] if legend else [])]

    @property
    def ready(self) -> float:
        """When the first cell was there; 0 if none ever was."""
        there = [at for changes in self.cells for at, what in changes if what != Doing.AWAY]
        return min(there, default=0.0)

    def _shown(self) -> list[int]:
        """Indices of the cells drawn; -1 stands for those left out."""
        count = len(self.cells)
        return list(range(count)) if count <= MAX_CELLS else [*range(MAX_CELLS - 5), -1, *range(count - 4, count)]


def legend_line(drawn: Iterable[str], top: int) -> str:
    """What the characters that were drawn mean, and what a digit of the row `live` stands for."""
    signs = [f"{sign} {word.replace('_', ' ')}" for word, sign in SIGNS.items() if sign in drawn and sign != " "]
    digit = f"live: unfinished executions{f' ({HIGH} = {top})' if top > HIGH else ''}"
    return _row("", "  ".join([*signs, digit]))


def span(seconds: float) -> str:
    """A time for people: `8 s`, `12.5 min`, `3 h`."""
    size, unit = next((u for u in UNITS if seconds >= u[0]), UNITS[-1])
    return f"{seconds / size:.1f}".removesuffix(".0") + f" {unit}"


def _row(name: str, text: str) -> str:
    return f"{name:<{MARGIN}}{text}".rstrip()


def _cell(changes: Sequence[tuple[float, str]], edges: Sequence[float], end: float) -> str:
    return "".join(_sign(shares) for shares in _shares(changes, edges, end))


def _sign(shares: Mapping[str, float]) -> str:
    """The thing that weighs most in one slice."""
    if not shares:
        return " "
    what = max(shares, key=lambda word: shares[word] * WEIGHTS.get(word, 1.0))
    return SIGNS.get(what, "?")


def _levels(changes: Sequence[tuple[float, int]], edges: Sequence[float], end: float, top: int) -> str:
    """The mean of each slice as a digit, rounded up: 0 means that nothing lived in it."""
    scale = max(top, HIGH) / HIGH
    row = ""
    for shares in _shares(changes, edges, end):
        whole = sum(shares.values())
        mean = sum(n * s for n, s in shares.items()) / whole if whole else 0.0
        row += str(min(HIGH, ceil(mean / scale))) if whole else " "
    return row


def _shares(changes: Sequence[tuple[float, T]], edges: Sequence[float], end: float) -> list[dict[T, float]]:
    """For each slice between two edges, the seconds that each value held; the last one holds until `end`."""
    shares: list[dict[T, float]] = [{} for _ in edges[1:]]
    slices = len(shares)
    first = max(0, bisect_right(changes, edges[0], key=lambda change: change[0]) - 1)
    for place in range(first, len(changes)):
        begins, what = changes[place]
        ends = min(end, edges[-1], changes[place + 1][0] if place + 1 < len(changes) else end)
        begins = max(begins, edges[0])
        number = max(0, bisect_right(edges, begins) - 1)
        while begins < ends and number < slices:
            upto = min(ends, edges[number + 1])
            shares[number][what] = shares[number].get(what, 0.0) + upto - begins
            begins, number = upto, number + 1
    return shares


def _marks(marks: Sequence[tuple[float, int]], edges: Sequence[float]) -> str:
    """Each step's number under the slice in which it was finished; one that has no room is left out."""
    row = [" "] * (len(edges) - 1)
    for at, number in marks:
        if not edges[0] <= at <= edges[-1]:
            continue
        text = str(number)
        place = min(max(0, bisect_right(edges, at) - 1), len(row) - len(text))
        free = row[max(0, place - 1) : place + len(text)]
        if all(sign == " " for sign in free):
            row[place : place + len(text)] = text
    return "".join(row)


def _axis(edges: Sequence[float]) -> str:
    """Times at about every twentieth slice."""
    row, every = "", max(12, (len(edges) - 1) // 4)
    for place in range(0, len(edges) - 1, every):
        label = span(edges[place])
        if place + len(label) < len(edges):
            row = row.ljust(place) + label
    label = span(edges[-1])
    last = len(edges) - 1 - len(label)
    return row.ljust(last) + label if last > len(row) else row
