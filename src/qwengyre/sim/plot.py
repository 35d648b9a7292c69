"""Pictures of results: PNG, SVG or PDF by the file's ending. Needs matplotlib (the extra `plot`), imported late."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qwengyre.errors import MachineError
from qwengyre.sim.sweep import Point
from qwengyre.sim.workload import HOUR

COLOURS: Mapping[str, str] = {
    "rollout": "#4c78a8",
    "training": "#e45756",
    "to_training": "#f2a541",
    "to_rollout": "#b9a9d6",
    "evaluation": "#72b7b2",
    "idle": "#dddddd",
    "lost": "#222222",
}


@dataclass(frozen=True)
class Strip:
    """A run as a picture has it: of each cell (since, what), and (since, unfinished executions)."""

    label: str
    cells: Sequence[Sequence[tuple[float, str]]]
    live: Sequence[tuple[float, int]]
    end: float


def _figure(rows: int, height: float) -> tuple[Any, Any]:
    """A new figure and its axes. Raises MachineError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MachineError("a plot needs matplotlib: pip install 'qwengyre[plot]'") from None
    figure = Figure(figsize=(11, height), layout="constrained")
    return figure, figure.subplots(rows, 1, sharex=rows > 1, squeeze=False)[:, 0]


def _save(figure: Any, path: Path) -> None:
    """Raises MachineError for a file that cannot be written, or an ending that is no picture's."""
    try:
        figure.savefig(path, dpi=140)
    except (OSError, ValueError) as error:
        raise MachineError(f"no plot at {path}: {error}") from None


def timelines(path: Path, strips: Sequence[Strip]) -> None:
    """Roles of cells over time and the waterlevel, one panel a run, all to one scale. Raises MachineError."""
    figure, panels = _figure(len(strips), 1.2 + 2.2 * len(strips))
    used: dict[str, str] = {}
    for axes, strip in zip(panels, strips, strict=True):
        for index, changes in enumerate(strip.cells):
            for (since, what), until in zip(changes, [*(s for s, _ in changes[1:]), strip.end], strict=True):
                if colour := COLOURS.get(what):
                    used[what] = colour
                    axes.broken_barh([(since / HOUR, (until - since) / HOUR)], (index - 0.4, 0.8), color=colour)
        axes.set(ylabel="cell", title=f"{strip.label}: {strip.end / HOUR:.2f} h", ylim=(len(strip.cells) - 0.5, -0.5))
        level = axes.twinx()
        level.step([s / HOUR for s, _ in strip.live], [n for _, n in strip.live], where="post", color="black", lw=1)
        level.set(ylabel="unfinished", ylim=(0, None))
    panels[-1].set(xlabel="hours")
    for what, colour in used.items():
        panels[0].plot([], [], color=colour, lw=6, label=what.replace("_", " "))
    figure.legend(loc="outside lower center", ncols=len(used))
    _save(figure, path)


def sweep(path: Path, points: Sequence[Point]) -> None:
    """Hours over the first axis; a line for each policy and each combination of the other axes; the lower bound of each
    dashed. Raises MachineError."""
    figure, (axes,) = _figure(1, 5.0)
    key = next(iter(points[0].setting))
    lines: dict[str, list[tuple[Any, float]]] = {}
    bounds: dict[str, list[tuple[Any, float]]] = {}
    for point in points:
        where, *rest = point.setting.values()
        suffix = "".join(f" {name}={value}" for name, value in zip(list(point.setting)[1:], rest, strict=True))
        for answer in point.answers:
            lines.setdefault(answer.result.policy + suffix, []).append((where, answer.result.hours))
        bounds.setdefault("lower bound" + suffix, []).append((where, point.answers[0].result.lower_bound_hours))
    for label, found in lines.items():
        axes.plot(*zip(*found, strict=True), marker="o", label=label)
    for label, found in bounds.items():
        axes.plot(*zip(*found, strict=True), ls="--", color="grey", label=label)
    axes.set(xlabel=key, ylabel="hours", ylim=(0, None))
    axes.legend()
    _save(figure, path)
