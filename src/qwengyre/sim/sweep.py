"""The same question at several settings: over cells, mu, phi, a, or any key of the workload."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from qwengyre.errors import ConfigError
from qwengyre.sim.compare import Answer


@dataclass(frozen=True)
class Point:
    """One setting of all axes, as text, and its answers."""

    setting: dict[str, Any]
    answers: list[Answer]

    def plain(self) -> list[dict[str, Any]]:
        """As JSON has it: an object a policy, with the setting."""
        return [answer.result.plain() | {"setting": self.setting} for answer in self.answers]


def settings(words: Sequence[str]) -> Iterator[dict[str, str]]:
    """`rl.phi=0,1` and `cluster.cells=4,8` -> every combination, the first axis outermost. Raises ConfigError."""
    axes: dict[str, list[str]] = {}
    for word in words:
        key, _, values = word.partition("=")
        axes[key] = [value for value in values.split(",") if value]
        if not axes[key] or (key != "a" and "." not in key):
            raise ConfigError(f"--sweep {word}: expected a=1,2,3 or section.key=value,value,...")
    for combination in product(*axes.values()):
        yield dict(zip(axes, combination, strict=True))


def number(text: str) -> float | str:
    """A value of an axis, as a number where it is one."""
    try:
        return float(text) if "." in text or "e" in text else int(text)
    except ValueError:
        return text


def table(points: Sequence[Point]) -> list[str]:
    """One line a setting and policy."""
    heads = [*points[0].setting, "policy", "hours", "x bound", "timed out", "mean stale", "max"]
    rows = [heads]
    for point in points:
        for answer in point.answers:
            r = answer.result
            over = f"{r.hours / r.lower_bound_hours:.2f}" if r.lower_bound_hours else "-"
            numbers = [f"{r.hours:.2f}", over, f"{r.timed_out:.1%}", f"{r.mean_staleness:.2f}", f"{r.max_staleness}"]
            rows.append([*map(str, point.setting.values()), answer.label, *numbers])
    widths = [max(len(row[i]) for row in rows) for i in range(len(heads))]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
