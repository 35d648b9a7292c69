"""What is made of the statuses of a run as they come: rates, averages, time left, warnings, the timeline so far.

Pure: its clock is the status's own `at`. Both views read it.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from qwengyre.observe.timeline import Timeline

Status = Mapping[str, Any]

WINDOW_S = 15.0
"""Rates are over the newest seconds."""
STEPS = 5
"""Averages are over the newest steps."""
LIFELESS = 2
"""Steps in a row without a live group, before that is worth a warning."""
MISMATCH = 0.01
"""Mean KL between engine and trainer above which their log-probabilities disagree."""


@dataclass
class Story:
    """`see` each status, in order."""

    timeline: Timeline = field(default_factory=Timeline)
    began: float = 0.0
    """Seconds of the run when the first status came: not 0 for one that goes on."""
    rates: dict[str, float] = field(default_factory=dict[str, float])
    """Tokens a second by kind: sampled, read (prompts), trained."""
    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    left_s: float | None = None
    """Estimate of the seconds to the end; None: no step is finished."""
    _tokens: deque[tuple[float, dict[str, int]]] = field(default_factory=deque[tuple[float, dict[str, int]]])
    _evaluating: tuple[float, int] | None = None
    """(since, settled then) of the evaluation in progress."""

    def see(self, status: Status) -> None:
        """The newest status. One of a run that is starting says nothing yet."""
        if status["phase"] == "starting":
            return
        at = status["at"]
        if not self.timeline.cells:
            self.began = at
        cells = status.get("doing") or list(status["roles"].values())
        self.timeline.see(at, cells, status["dispatched"] - status["ended"], status["step"])
        self.rows = status["rows"]
        self._rate(at, status.get("tokens", {}))
        self.left_s = self._left(status)

    @property
    def reward(self) -> float | None:
        """Mean over the newest steps."""
        rewards = [row["reward/mean"] for row in self.rows[-STEPS:]]
        return sum(rewards) / len(rewards) if rewards else None

    def window(self, slices: int) -> float:
        """Where a moving timeline of so many slices begins: a second each, or so that the newest steps are seen."""
        steps = [row["time/step"] for row in self.rows[-STEPS:]]
        seconds = max(slices, 3 * sum(steps) / len(steps) if steps else 0)
        return max(self.began, self.timeline.end - seconds)

    def _rate(self, at: float, tokens: Mapping[str, int]) -> None:
        if self._tokens and any(n < self._tokens[-1][1].get(kind, 0) for kind, n in tokens.items()):
            self._tokens.clear()  # a process came back and counts anew
        self._tokens.append((at, dict(tokens)))
        while at - self._tokens[0][0] > WINDOW_S:
            self._tokens.popleft()
        since, first = self._tokens[0]
        self.rates = {k: (n - first.get(k, 0)) / (at - since) for k, n in tokens.items()} if at > since else {}

    def _left(self, status: Status) -> float | None:
        times = [row["time/step"] for row in self.rows[-STEPS:]]
        if not times or status["phase"] == "done":
            return None
        step_s = sum(times) / len(times)
        since = self.timeline.marks[-1][0] if self.timeline.marks else self.began
        steps = status["steps"] - status["step"]
        gone = 0.0 if status.get("evaluation") else min(step_s, status["at"] - since)
        return max(0.0, steps * step_s - gone) + self._evaluations(status)

    def _evaluations(self, status: Status) -> float:
        """Seconds of the evaluation in progress, and of those that are still to come."""
        now, rows = status.get("evaluation"), status.get("evaluations", [])
        whole = rows[-1].get("time/eval", 0.0) if rows else 0.0
        left = whole * status.get("to_evaluate", 0)
        if not now:
            self._evaluating = None
            return left
        if self._evaluating is None:
            self._evaluating = status["at"], now["settled"]
        since, before = self._evaluating
        done = now["settled"] - before
        each = (status["at"] - since) / done if done else whole / now["count"]
        return left + each * (now["count"] - now["settled"])


def warnings(status: Status) -> dict[str, str]:
    """What a person should look at now, by a name that stays the same as long as it holds."""
    rows = status.get("rows", [])
    found = {
        "lifeless": _lifeless(rows),
        "silent": _silent(rows),
        "zero": _zero(rows),
        "dropped": _dropped(rows),
        "endings": _endings(status.get("endings", {})),
        "mismatch": _mismatch(rows),
    }
    return {name: text for name, text in found.items() if text}


def _lifeless(rows: list[Any]) -> str:
    newest = rows[-LIFELESS:]
    if len(newest) < LIFELESS or any(row["reward/live_groups"] for row in newest):
        return ""
    return (
        f"no live group for {LIFELESS} steps: within each group all executions had the same score, so nothing was "
        "learned. Tasks too easy or too hard? Raise rl.group_size or rl.temperature, or change the tasks"
    )


def _silent(rows: list[Any]) -> str:
    if not rows or rows[-1]["calls"] or not rows[-1]["executions"]:
        return ""
    return (
        "no execution of the last step made a model call: does the harness use {base_url} and {api_key}? "
        "executions/<id>/harness.log says what it did"
    )


def _zero(rows: list[Any]) -> str:
    if len(rows) < LIFELESS or any(row["reward/max"] > 0 for row in rows) or not rows[-1]["calls"]:
        return ""
    return (
        "every score so far is 0: is the task solvable for this model, and does the verifier see the work? "
        "executions/<id>/verifier/ has what it said"
    )


def _dropped(rows: list[Any]) -> str:
    dropped = sum(row["executions/dropped"] for row in rows[-STEPS:])
    whole = dropped + sum(row["executions"] for row in rows[-STEPS:])
    if dropped * 4 <= whole:
        return ""
    return f"{dropped} of the last {whole} executions were dropped (that is no 0): `qwengyre inspect` says why"


def _endings(endings: Mapping[str, int]) -> str:
    whole = sum(endings.values())
    bad = {what: endings.get(what, 0) for what in ("harness_timeout", "harness_crash", "overall_timeout")}
    if sum(bad.values()) * 2 <= whole or whole < 4:
        return ""
    said = ", ".join(f"{count} by {what.replace('_', ' ')}" for what, count in bad.items() if count)
    limits = (
        "; harness.timeout_s and harness.overall_timeout_s are the limits"
        if bad["harness_timeout"] or bad["overall_timeout"]
        else ""
    )
    return f"{sum(bad.values())} of {whole} executions ended badly, {said}: see executions/<id>/harness.log{limits}"


def _mismatch(rows: list[Any]) -> str:
    if not rows or rows[-1]["mismatch_kl/mean"] <= MISMATCH:
        return ""
    return (
        f"log-probs of engine and trainer disagree (mean KL {rows[-1]['mismatch_kl/mean']:.3f}): with equal weights "
        "this is numerics, see `qwengyre inspect DIR --rebuild`"
    )
