"""What a run came to, from its folder alone: printed when it ends, and again by `inspect` at any later time."""

import json
import shlex
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qwengyre.observe.branching import Selection, most_branching, rules
from qwengyre.observe.lines import counted, estimate, trend
from qwengyre.observe.timeline import Timeline, span
from qwengyre.observe.use import Use, add_use
from qwengyre.schedule.events import Event
from qwengyre.schedule.state import Plan
from qwengyre.schedule.step import start, step

INDENT = 12
KINDS = 8
"""Kinds of task that are listed."""
CELLS = 8
"""Cells whose use is listed one by one; of more, the sum."""
LEAVES = 6
"""Lines about the selection of one execution."""


@dataclass
class Course:
    """What the scheduler's events say of a run: the timeline, and what each cell did with its time."""

    timeline: Timeline = field(default_factory=Timeline)
    uses: list[Use] = field(default_factory=list[Use])
    note: str = ""
    """Why there is nothing."""


def course(plan: Plan, events: Iterable[Event]) -> Course:
    """Fold a journal. Raises ValueError for events that cannot be."""
    state, found = start(plan), Course(uses=[Use() for _ in range(plan.num_cells)])
    for event in events:
        before = state
        state, _ = step(state, event)
        add_use(found.uses, before, state.at - before.at)
        found.timeline.see_state(state)
    return found


def summary_lines(run_dir: Path, found: Course, width: int = 100) -> Iterator[str]:
    """The summary of an ended run; `found` is what its journal says. Raises OSError when `summary.json` is missing."""
    summary = json.loads((run_dir / "summary.json").read_text())
    config = tomllib.loads((run_dir / "config.toml").read_text())
    rows = [json.loads(line) for line in _text(run_dir / "metrics.jsonl")]
    yield from _steps(summary, rows)
    yield from _held_out(summary.get("held_out"))
    yield ""
    yield from found.timeline.draw(width, found.timeline.ready)
    if found.note:
        yield found.note
    yield ""
    yield from _uses(found.uses)
    yield from _moves(summary["moves"])
    scores = {line["execution"]: line for line in map(json.loads, _text(run_dir / "scores.jsonl"))}
    given = {name: line["score"] for name, line in scores.items() if line["verdict"] != "dropped"}
    chosen = most_branching(run_dir / "calls", *rules(config), given)
    if chosen is not None:
        yield ""
        yield from _selected(chosen, scores)
    yield ""
    yield from _next(run_dir, config, chosen)


def _row(name: str, text: str) -> str:
    return f"{name:<{INDENT}}{text}"


def _steps(summary: dict[str, Any], rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    counts = summary["executions"]
    verdicts = ", ".join(f"{counts[what]} {what}" for what in ("scored", "placeholder", "dropped") if counts[what])
    tokens = sum(row["tokens/trained"] for row in rows)
    steps = counted(summary["steps"], "step")
    yield _row("run", f"{steps} in {span(summary['seconds'])}; executions: {verdicts or 'none'}")
    if rows:
        rewards = [row["reward/mean"] for row in rows]
        by_step = f"; step by step, in tenths: {trend(rewards, 60)}" if len(rows) > 2 else ""
        yield _row("reward", f"{rewards[0]:.3f} at the first step, {rewards[-1]:.3f} at the last{by_step}")
        steps = sum(row["actor/optimizer_step"] for row in rows)
        stale = max(row["staleness/max"] for row in rows)
        yield _row("training", f"{counted(steps, 'optimizer step')} on {tokens} tokens; staleness at most {stale}")


def _held_out(found: dict[str, Any] | None) -> Iterator[str]:
    if not found:
        yield _row("held out", "not measured: eval.before=true eval.after=true measures it before and after training")
        return
    yield _row("held out", _compared(found))
    if any((found.get("greedy") or {}).values()):
        yield _row("", f"greedy: {_compared(found['greedy'])}")
    kinds = found.get("kinds") or {}
    for kind, each in list(kinds.items())[:KINDS] if len(kinds) > 1 else ():
        yield _row("", f"  {kind}: {_compared(each, short=True)}; greedy {_compared(each['greedy'], short=True)}")


def _compared(found: dict[str, Any], *, short: bool = False) -> str:
    """Before, after and difference, as far as they were measured."""
    before, after, difference = (found.get(key) for key in ("before", "after", "difference"))
    if short:
        return " -> ".join(f"{each['mean']:.2f}" if each else "?" for each in (before, after))
    said = [f"{name} {estimate(each)}" for name, each in (("before", before), ("after", after)) if each]
    said += [f"difference {estimate(difference)}"] if difference else []
    samples = " and ".join(str(each["n"]) for each in (before, after) if each)
    return ", ".join(said) + f" (95% interval; {samples} samples)"


def _uses(uses: Sequence[Use]) -> Iterator[str]:
    shown = list(enumerate(uses))[:CELLS] if len(uses) <= CELLS else []
    for cell, use in shown:
        yield _row(f"cell {cell}", _shares(use))
    if len(uses) > 1:
        whole = Use(*(sum(getattr(use, part) for use in uses) for part in PARTS))
        yield _row("all cells", _shares(whole))


PARTS = ("rollout", "evaluation", "training", "idle", "moving")


def _shares(use: Use) -> str:
    if not use.whole:
        return "was never ready"
    shares = {part: getattr(use, part) / use.whole for part in PARTS}
    said = ", ".join(f"{part} {share:.0%}" for part, share in shares.items() if share or part == "idle")
    return f"{said} of {span(use.whole)}"


def _moves(moves: dict[str, Any]) -> Iterator[str]:
    if not moves["moves"]:
        return
    failed = f", {moves['failed']} failed" if moves["failed"] else ""
    calls = moves["calls_continued"]
    live = f"; {calls} model calls continued with {moves['tokens_kept']} tokens kept" if calls else ""
    changes = counted(moves["moves"], "change")
    yield _row("moves", f"{changes} of role{failed}, {moves['seconds']:.1f} s altogether{live}")


def _selected(chosen: Selection, scores: dict[str, Any]) -> Iterator[str]:
    score = scores.get(str(chosen.execution))
    said = f", {score['task']}, {score['verdict']} {score['score']:.3f}" if score else ""
    leaves, calls = len(chosen.roles), len(chosen.log.calls)
    none = "; no execution branched" if leaves == 1 else ""
    branching = f"{counted(leaves, 'branch', 'es')} in {counted(chosen.threads, 'thread')}"
    yield _row("selected", f"of execution {chosen.execution}{said}: {counted(calls, 'call')}, {branching}{none}")
    lines = list(chosen.lines())
    yield from (_row("", line) for line in lines[:LEAVES])
    if len(lines) > LEAVES:
        yield _row("", f"and {len(lines) - LEAVES} more leaves")
    for line in _credit(chosen, scores):
        yield _row("", line)


def _credit(chosen: Selection, scores: dict[str, Any]) -> Iterator[str]:
    """What its group makes of its score."""
    group = chosen.execution.group
    mates = [line for name, line in scores.items() if name.startswith(f"{group}-") and line["verdict"] != "dropped"]
    own = scores.get(str(chosen.execution))
    if own is None or own["verdict"] == "dropped" or not mates:
        return
    mean = sum(line["score"] for line in mates) / len(mates)
    effect = own["score"] - mean
    does = "makes them likelier" if effect > 0 else "makes them less likely" if effect < 0 else "trains nothing"
    yield f"its score less the mean of its group of {len(mates)} ({mean:.3f}) is {effect:+.3f}: that {does}"


def _next(run_dir: Path, config: dict[str, Any], chosen: Selection | None) -> Iterator[str]:
    """Where the model is, and three commands."""
    checkpoints = sorted(path.parent for path in (run_dir / "checkpoints").glob("step-*/run.json"))
    folder, model = shlex.quote(str(run_dir)), shlex.quote(str(checkpoints[-1])) if checkpoints else ""
    adapter = bool(checkpoints) and (checkpoints[-1] / "adapter_config.json").exists()
    if adapter:
        base = json.loads((checkpoints[-1] / "adapter_config.json").read_text())["base_model_name_or_path"]
        serve = f"vllm serve {shlex.quote(base)} --enable-lora --lora-modules trained={model}"
        yield _row("model", f"{model}: an adapter, `{serve}` serves it")
    elif model:
        yield _row("model", f"{model}: a Hugging Face folder, `vllm serve {model}` serves it as it is")
    commands = [(f"qwengyre inspect {folder} {chosen.execution}", "its tree, and each call")] if chosen else []
    if model:
        merged = " trainer.lora_rank=0" if adapter else ""
        again = f"{folder}/config.toml model.name={model}{merged}"
        commands.append((f"qwengyre eval {again}", "scores it on held-out tasks"))
        commands.append((f"qwengyre train {again}", "a new run that begins with it"))
    else:
        commands.append((f"qwengyre inspect {folder}", "this summary, and every step and execution"))
    for number, (command, why) in enumerate(commands):
        yield _row("" if number else "try next", f"{command}   # {why}")


def _text(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
