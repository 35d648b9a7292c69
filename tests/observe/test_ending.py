import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from observe_statuses import evaluation, move, row
from rich.console import Console

from qwengyre.gateway.journal import Journal, Writer
from qwengyre.observe import inspect
from qwengyre.observe.branching import most_branching, selection
from qwengyre.observe.ending import Course, course, summary_lines
from qwengyre.observe.use import cell_use
from qwengyre.schedule.state import Plan
from qwengyre.sim.run import simulate
from qwengyre.sim.workload import Workload
from qwengyre.types import Kind, ModelCall, Segment, Stretch


def call(number: int, parent: int, output: int, thread: str = "a", **fields: Any) -> ModelCall:
    values: dict[str, Any] = {
        "call": number,
        "thread": thread,
        "parent": parent,
        "suffix": np.arange(3, dtype=np.int32),
        "segments": (Segment(Kind.CONTEXT, 3),),
        "output": np.arange(output, dtype=np.int32),
        "logprobs": np.zeros(output, np.float32),
        "stretches": (Stretch(0, output, 4, "cell0.1", "stop"),),
        "finish": "stop",
        "temperature": 1.0,
        "request": {"messages": [{"role": "user", "text": "go\x1b[2Jon"}]},
        "response": {"raw": "done"},
    }
    return ModelCall(**values | fields)


async def write(path: Path, calls: list[ModelCall], delivered: set[int] | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = Writer()
    journal = Journal(path, writer, 0)
    journal.opened(path.stem)
    for one in calls:
        journal.call(one)
        if delivered is None or one.call in delivered:
            journal.delivered(one.call)
    await writer.idle()
    journal.close()


TITLE = {"messages": [{"role": "system", "content": "You are a title generator."}]}


async def branching(path: Path) -> None:
    """Two branches below call 0 (rows 1 -> 3 and 5), and a title (rows 6, 7) in a thread of its own."""
    calls = [call(0, -1, 10), call(1, 1, 20), call(2, 1, 30), call(3, -1, 5, "b", request=TITLE)]
    await write(path, calls)


async def test_each_leaf_says_why_it_was_taken_or_not(tmp_path: Path) -> None:
    await branching(tmp_path / "0-1.calls")
    lines = list(selection(tmp_path / "0-1.calls", seed=0, jmax=5).lines())
    first = "leaf 3, 30" if "leaf 3" in lines[0] else "leaf 5, 40"
    assert lines[0].startswith(f"trajectory 0: {first} trainable tokens: main, drawn among 2 leaves with chance ")
    assert lines[0].split("chance ")[1].startswith(f"{first[-2:]}/70")
    assert "main, the only leaf of its class with tokens left" in lines[1]
    assert "20 trainable" in lines[1] or "30 trainable" in lines[1]
    assert lines[2].startswith("not taken: leaf 7: auxiliary, never trained (system text of call 3")
    few = list(selection(tmp_path / "0-1.calls", seed=0, jmax=1).lines())
    assert "rl.jmax=1 were taken" in few[1]


async def test_what_trains_nothing_more_says_so(tmp_path: Path) -> None:
    await write(tmp_path / "0-0.calls", [call(0, -1, 10), call(1, 1, 20), call(2, 1, 30)], delivered={0, 1})
    lines = list(selection(tmp_path / "0-0.calls", seed=0, jmax=5).lines())
    assert any("leaf 5: main, all that trains on its path is in the trajectories above" in line for line in lines) or (
        "leaf 5, 10 trainable" in lines[0]
    )


async def test_the_most_branching_trained_execution_is_found(tmp_path: Path) -> None:
    assert most_branching(tmp_path, 0, 5) is None
    await write(tmp_path / "0-0.calls", [call(n, 2 * n - 1, 100) for n in range(5)])
    await branching(tmp_path / "1-1.calls")
    await branching(tmp_path / "eval0-1.calls")
    await write(tmp_path / "2-0.calls", [])
    found = most_branching(tmp_path, 0, 5)
    assert found is not None
    assert (str(found.execution), len(found.roles), found.threads) == ("1-1", 3, 2)
    assert selection(tmp_path / "eval0-1.calls", 0, 5).picks == [], "an evaluation trains nothing"


async def test_of_equally_branching_ones_the_one_that_teaches_is_found(tmp_path: Path) -> None:
    for execution, calls in (("0-0", 3), ("1-0", 2), ("2-0", 2)):
        await write(tmp_path / f"{execution}.calls", [call(n, 2 * n - 1, 100) for n in range(calls)])
    scores = {"0-0": 1.0, "0-1": 1.0, "1-0": 1.0, "1-1": 1.0, "2-0": 0.0, "2-1": 1.0}
    for given, expected in ((scores, "2-0"), (None, "0-0")):
        found = most_branching(tmp_path, 0, 5, scores=given)
        assert found is not None
        assert str(found.execution) == expected


HELD_OUT = {"mean": 0.3, "low": 0.25, "high": 0.35, "n": 200}
GREEDY = {"before": HELD_OUT, "after": HELD_OUT, "difference": None}


async def run_folder(folder: Path, **summary: Any) -> None:
    await branching(folder / "calls" / "0-1.calls")
    (folder / "config.toml").write_text("[run]\nseed = 0\n[rl]\njmax = 5\n")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row(n)) + "\n" for n in range(3)))
    scores = [
        {
            "execution": f"0-{n}",
            "task": "t",
            "verdict": "scored",
            "score": n / 2,
            "ending": "finished",
            "reason": "[/not] markup",
        }
        for n in range(2)
    ]
    (folder / "scores.jsonl").write_text("".join(json.dumps(line) + "\n" for line in scores))
    (folder / "checkpoints" / "step-000003").mkdir(parents=True)
    (folder / "checkpoints" / "step-000003" / "run.json").write_text("{}")
    moves = {"moves": 4, "failed": 0, "seconds": 1.5, "calls_continued": 2, "tokens_kept": 57}
    values = {
        "steps": 3,
        "executions": {"scored": 48, "placeholder": 0, "dropped": 1},
        "seconds": 90.0,
        "held_out": None,
        "moves": moves,
    }
    (folder / "summary.json").write_text(json.dumps(values | summary))


@pytest.fixture(scope="module")
def two_cells() -> Course:
    """What a simulated run of two cells did with its time."""
    plan = Plan(cells=2, groups_per_step=2, group_size=2, steps=3, capacity=4)
    events = [event for event, _ in simulate(plan, Workload(), 1)[1].entries]
    found = course(plan, events)
    assert found.uses == cell_use(plan, events)
    return found


def test_a_cell_s_time_is_its_parts(two_cells: Course) -> None:
    for use in two_cells.uses:
        assert use.whole == pytest.approx(two_cells.timeline.end)
        assert min(use.rollout, use.training, use.idle, use.moving) > 0
        assert use.busy == use.rollout + use.training + use.evaluation


async def test_the_summary_tells_the_whole_run_and_is_made_again_from_its_folder(
    tmp_path: Path, two_cells: Course
) -> None:
    await run_folder(tmp_path)
    lines = list(summary_lines(tmp_path, two_cells))
    assert lines == list(summary_lines(tmp_path, two_cells))
    text = "\n".join(lines)
    for part in (
        "3 steps in 1.5 min; executions: 48 scored, 1 dropped",
        "0.250 at the first step, 0.250 at the last; step by step, in tenths: 222",
        "held out    not measured: eval.before=true eval.after=true",
        "cell 1  =",
        "cell 0      rollout ",
        "all cells   rollout ",
        "4 changes of role, 1.5 s altogether; 2 model calls continued with 57 tokens kept",
        "selected    of execution 0-1, t, scored 0.500: 4 calls, 3 branches in 2 threads",
        "not taken: leaf 7: auxiliary",
        "its score less the mean of its group of 2 (0.250) is +0.250",
        f"vllm serve {tmp_path}/checkpoints/step-000003",
        f"qwengyre inspect {tmp_path} 0-1",
    ):
        assert part in text, (part, text)
    assert "no execution branched" not in text
    commands = lines[next(i for i, line in enumerate(lines) if line.startswith("try next")) :]
    assert len(commands) == 3
    assert all("qwengyre " in line and " # " in line for line in commands)


async def test_held_out_is_told_with_its_interval_greedily_too_and_by_kind(tmp_path: Path, two_cells: Course) -> None:
    after = HELD_OUT | {"mean": 0.9, "low": 0.85, "high": 0.95}
    found = {"before": HELD_OUT, "after": after, "difference": HELD_OUT | {"mean": 0.6, "low": 0.55, "high": 0.65}}
    kinds = {"copy": found | {"greedy": GREEDY}, "move": found | {"greedy": GREEDY}}
    await run_folder(tmp_path, held_out=found | {"greedy": GREEDY, "kinds": kinds})
    lines = list(summary_lines(tmp_path, two_cells))
    assert (
        "held out    before 0.300 [0.250, 0.350], after 0.900 [0.850, 0.950], difference 0.600 [0.550, 0.650] "
        "(95% interval; 200 and 200 samples)"
    ) in lines
    assert any("greedy: before 0.300 [0.250, 0.350], after 0.300" in line for line in lines)
    assert any("copy: 0.30 -> 0.90; greedy 0.30 -> 0.30" in line for line in lines)


async def test_inspect_shows_no_escape_sequence_of_a_model_or_harness(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await run_folder(tmp_path)
    kept = Stretch(0, 10, 4, "cell0.1", "stop", kv_version=2)
    await write(tmp_path / "calls" / "5-0.calls", [call(0, -1, 10, stretches=(kept,))])
    inspect.show(Console(width=160), tmp_path, "5-0", rebuild=False)
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "go\\x1b[2Jon" in shown
    assert "v4 on keys and values of v2 at cell0.1 10 tokens (stop)" in shown


async def test_inspect_of_a_run_prints_reasons_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await run_folder(tmp_path)
    (tmp_path / "moves.jsonl").write_text(json.dumps(move()) + "\n")
    (tmp_path / "evals.jsonl").write_text(json.dumps(evaluation(0)) + "\n")
    inspect.show(Console(width=160), tmp_path, "", rebuild=False)
    shown = capsys.readouterr().out
    assert "[/not] markup" in shown
    assert "held out before training: 0.300" in shown
    assert "nothing was live there" in shown
