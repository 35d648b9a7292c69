"""Statuses as control gives them, for the tests of the views."""

from typing import Any


def row(step: int, **changes: Any) -> dict[str, Any]:
    """A line of metrics.jsonl."""
    return {
        "step": step,
        "version": step,
        "groups": [2 * step, 2 * step + 1],
        "executions": 8,
        "executions/dropped": 0,
        "reward/mean": 0.25,
        "reward/max": 1.0,
        "reward/live_groups": 2,
        "actor/grad_norm": 0.5,
        "actor/optimizer_step": True,
        "mismatch_kl/mean": 1e-9,
        "tokens/trained": 100,
        "calls": 8,
        "staleness/max": 0,
        "time/step": 10.0,
    } | changes


def status(at: float, step: int = 0, steps: int = 4, **changes: Any) -> dict[str, Any]:
    """What control says while a run goes on."""
    return {
        "phase": "running",
        "alive": 1,
        "at": at,
        "step": step,
        "steps": steps,
        "version": step,
        "doing": ["rollout", "rollout"],
        "roles": {"0": "rollout", "1": "rollout"},
        "dispatched": 8,
        "placed": 6,
        "ended": 2,
        "tokens": {"sampled": 0, "read": 0, "trained": 0},
        "backlog": [0, 0],
        "rows": [row(n) for n in range(step)],
        "moves": [],
        "deaths": [],
        "phases": {},
        "endings": {"finished": 2},
        "evaluation": None,
        "evaluations": [],
        "to_evaluate": 0,
        "waiting": ["step 1 has 0 groups and waits for 2 more", "group 0 waits for 4 of 4 executions to settle"],
    } | changes


def move(**changes: Any) -> dict[str, Any]:
    """A line of moves.jsonl of a move during which nothing was live."""
    return {
        "cell": 1,
        "role": "training",
        "outcome": "training",
        "failed": "",
        "at": 12.0,
        "seconds": 0.31,
        "phases": {"shut": 0.001, "routes": 0.002, "kv": 0.09, "drain": 0.21, "train": 0.007},
        "live_executions": 0,
        "calls_continued": 0,
        "tokens_kept": 0,
        "kv_moved": 0,
        "kv_recomputed": 0,
    } | changes


def evaluation(step: int, mean: float = 0.3, **changes: Any) -> dict[str, Any]:
    """A line of evals.jsonl."""
    return {
        "step": step,
        "eval/tasks": 50,
        "eval/dropped": 0,
        "eval/mean": mean,
        "eval/low": mean - 0.05,
        "eval/high": mean + 0.05,
        "eval/n": 200,
        "eval/greedy/mean": mean,
        "eval/greedy/low": mean - 0.1,
        "eval/greedy/high": mean + 0.1,
        "time/eval": 20.0,
    } | changes
