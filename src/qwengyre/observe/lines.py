"""Things of a run in one line each, for the live view, the plain view, the summary and `inspect`. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from qwengyre.observe.timeline import span

Row = Mapping[str, Any]

FEW_PHASES = 2
"""Phases of a move that are named: the slowest."""
SLOW_S = 0.05
"""A phase that is quicker is not worth a word."""


def step_line(row: Row) -> str:
    """One finished step."""
    return (
        f"step {row['step'] + 1}: reward {row['reward/mean']:.3f} over {row['executions']} executions "
        f"({row['reward/live_groups']} of {len(row['groups'])} groups live), {_optimizer(row)}, "
        f"staleness {row['staleness/max']}, weights v{row['version']}, {span(row['time/step'])}"
    )


def _optimizer(row: Row) -> str:
    return f"grad norm {row['actor/grad_norm']:.4f}" if row["actor/optimizer_step"] else "no gradient"


def move_line(row: Row) -> str:
    """One move of a cell. What did not happen is not told."""
    to = {"rollout": "to rollout", "training": "to training"}.get(row["role"], row["role"])
    outcome = "" if row["outcome"] == row["role"] else f" FAILED ({row['failed']}), now {row['outcome']};"
    slow = sorted(row["phases"].items(), key=lambda phase: -phase[1])[:FEW_PHASES]
    phases = ", ".join(f"{name} {seconds:.2f}" for name, seconds in slow if seconds >= SLOW_S)
    took = f"{row['seconds']:.2f} s" + (f" ({phases})" if phases else "")
    return f"cell {row['cell']} {to} at {row['at']:.0f} s:{outcome} {took}; {_moved(row)}"


def _moved(row: Row) -> str:
    live = row["live_executions"]
    calls, kept, moved, again = (row[k] for k in ("calls_continued", "tokens_kept", "kv_moved", "kv_recomputed"))
    if not (live or calls or moved or again):
        return "nothing was live there"
    executions = counted(live, "live execution")
    if not (calls or moved or again):
        return f"{executions}, none inside a model call"
    told = f"{calls} calls continued with {kept} tokens kept, KV of {moved} tokens moved, of {again} recomputed"
    return f"{executions}, {told}"


def checkpoint_line(row: Row) -> str:
    """A checkpoint that is complete: what its `run.json` says."""
    return f"checkpoint after step {row['step']}: {row['bytes'] / 1e6:.1f} MB in {row['seconds']:.1f} s"


def now_line(status: Row) -> str:
    """What is going on, without its time."""
    if status["phase"] == "starting":
        return "; ".join(status["waiting"])
    return f"{place_of(status)}: {executions_of(status)}{_backlog(status)}; cells: {cells_of(status)}"


def place_of(status: Row) -> str:
    """The step that is open, and how far an evaluation is."""
    evaluation = status.get("evaluation")
    parts = [f"step {min(status['step'] + 1, status['steps'])} of {status['steps']}"] if status["steps"] else []
    return ", ".join([*parts, *([evaluating(evaluation)] if evaluation else [])]) or "evaluation"


def evaluating(evaluation: Row) -> str:
    """How far the evaluation in progress is."""
    when = f"after step {evaluation['step']}" if evaluation["step"] else "before training"
    return f"evaluation {when}: {evaluation['settled']} of {evaluation['count']} executions"


def executions_of(status: Row) -> str:
    """Executions now."""
    running, queued = status["placed"] - status["ended"], status["dispatched"] - status["placed"]
    return f"{counted(running, 'execution')} running, {queued} queued, {status['ended']} ended"


def _backlog(status: Row) -> str:
    left = sum(status["backlog"])
    return f", {counted(left, 'micro-step')} to train" if left else ""


def cells_of(status: Row) -> str:
    """How many cells do what."""
    counts = Counter(status.get("doing") or status["roles"].values())
    return ", ".join(f"{count} {str(word).replace('_', ' ')}" for word, count in counts.items())


def evaluation_line(row: Row) -> str:
    """A finished evaluation: a line of `evals.jsonl`."""
    when = f"after step {row['step']}" if row["step"] else "before training"
    parts = [f"{estimate(row, 'eval/')} over {row['eval/tasks']} tasks" if "eval/mean" in row else ""]
    parts += [f"greedy {estimate(row, 'eval/greedy/')}" if "eval/greedy/mean" in row else ""]
    parts += [f"{row['eval/dropped']} executions dropped" if row["eval/dropped"] else ""]
    parts += [f"in {span(row['time/eval'])}" if "time/eval" in row else ""]
    return f"held out {when}: " + ", ".join(part for part in parts if part)


def estimate(row: Row, prefix: str = "") -> str:
    """A mean with its 95% interval."""
    mean, low, high = (row[prefix + key] for key in ("mean", "low", "high"))
    return f"{mean:.3f} [{low:.3f}, {high:.3f}]"


def waiting_lines(status: Row, most: int) -> list[str]:
    """Who waits for what, since when; first the cells in transit with the phase that they are in."""
    phases = [f"cell {cell} is in phase '{phase}' of its move" for cell, phase in status.get("phases", {}).items()]
    return [*phases, *status["waiting"]][:most]


def tokens_line(rates: Mapping[str, float]) -> str:
    """Tokens a second, of now; nothing where nothing is computed."""
    return ", ".join(f"{rate:.0f} {what}" for what, rate in rates.items() if rate >= 0.5)


def counted(number: int, word: str, more: str = "s") -> str:
    """`1 step`, `2 steps`."""
    return f"{number} {word}{more if number != 1 else ''}"


def trend(rewards: Iterable[float], most: int) -> str:
    """The newest rewards as a digit a step: tenths."""
    digits = "".join(str(min(9, max(0, int(reward * 10)))) for reward in rewards)
    return digits[-most:]
