"""Results as a table for people."""

from collections.abc import Callable, Sequence

from qwengyre.sim.compare import Answer
from qwengyre.sim.run import Result

_COLUMNS: tuple[tuple[str, int, Callable[[Result], str]], ...] = (
    ("hours", 7, lambda r: _hours(r.hours)),
    ("h/step", 7, lambda r: _hours(r.hours_per_step)),
    ("x bound", 8, lambda r: f"{r.hours / r.lower_bound_hours:.2f}" if r.lower_bound_hours else "-"),
    ("tokens", 8, lambda r: _short(r.tokens)),
    ("timed out", 10, lambda r: f"{r.timed_out:.1%}"),
    ("staleness", 12, lambda r: f"{r.mean_staleness:.2f} max {r.max_staleness}"),
    ("training", 9, lambda r: f"{r.train_busy:.1%}"),
    ("idle", 6, lambda r: f"{r.train_idle:.1%}"),
    ("slots", 6, lambda r: f"{r.slot_fill:.0%}"),
    ("moves/ex", 9, lambda r: f"{r.moves_per_execution:.2f}"),
    ("switches", 9, lambda r: f"{r.switches}"),
)


def table(answers: Sequence[Answer]) -> list[str]:
    """One line an answer, then the lower bound and who was fastest."""
    width = max(6, *(len(answer.label) for answer in answers))
    lines = [f"{'policy':<{width}}" + "".join(f"{name:>{size + 1}}" for name, size, _ in _COLUMNS)]
    for answer in answers:
        cells = (f"{show(answer.result):>{size + 1}}" for _, size, show in _COLUMNS)
        lines.append(f"{answer.label:<{width}}" + "".join(cells))
    bound = answers[0].result.lower_bound_hours
    lines.append(f"With these executions no policy takes less than {_hours(bound)} h (x bound: hours over that).")
    if len(answers) > 1:
        first = min(answers, key=lambda answer: answer.result.hours)
        rest = [f"{x.label} {x.result.hours / first.result.hours:.2f}x" for x in answers if x is not first]
        lines.append(f"Fastest: {first.label}. Hours of the others over its: {', '.join(rest)}.")
    return lines


def _hours(hours: float) -> str:
    return f"{hours:.2f}" if hours >= 1 else f"{hours:.3g}"


def _short(number: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.0f}"
