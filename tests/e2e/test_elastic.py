"""Whole runs with two and three cells: roles change while executions live, and no harness learns of it."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from running import leftovers, lines, qwengyre

from qwengyre.cluster.journal import read, read_plan
from qwengyre.gateway.journal import CallLog, read_calls
from qwengyre.observe.lines import move_line
from qwengyre.observe.rebuild import check
from qwengyre.observe.use import cell_use
from qwengyre.schedule.actions import Publish
from qwengyre.schedule.events import CellReady
from qwengyre.schedule.step import start, step
from qwengyre.types import Role

pytestmark = pytest.mark.e2e

TWO = ("run.steps=2",)
THREE = ("run.steps=2", "cells.count=3", "cells.executions=4")


@dataclass(frozen=True)
class Ran:
    """A finished run."""

    folder: Path
    printed: str
    cells: int

    @property
    def logs(self) -> dict[str, CallLog]:
        return {path.stem: read_calls(path) for path in sorted((self.folder / "calls").glob("*.calls"))}


@pytest.fixture(scope="module", params=[TWO, THREE], ids=["2 cells", "3 cells"])
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("runs") / "elastic"
    words = ("train", "examples/elastic.toml", *request.param, "checkpoint.keep=0", "--run-dir", str(folder))
    done = qwengyre(*words, timeout_s=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert leftovers(folder) == []
    return Ran(folder, done.stdout, read_plan(folder / "journal.jsonl").cells)


def test_every_move_is_told_and_calls_continue_with_their_tokens(ran: Ran) -> None:
    moves = lines(ran.folder / "moves.jsonl")
    assert {m["cell"] for m in moves} == set(range(ran.cells))
    assert all(m["outcome"] == m["role"] and not m["failed"] for m in moves)
    for move in moves:
        expected = ["shut", "routes", "kv", "drain", "train"] if move["role"] == "training" else None
        assert list(move["phases"]) == (expected or ["stop", "snapshot", "roll", "routes"])
        assert move_line(move) in ran.printed
    assert any(m["live_executions"] and m["calls_continued"] and m["tokens_kept"] for m in moves)
    summary = json.loads((ran.folder / "summary.json").read_text())["moves"]
    assert (summary["moves"], summary["failed"]) == (len(moves), 0)
    assert summary["tokens_kept"] == sum(m["tokens_kept"] for m in moves)
    assert "calls continued with" in qwengyre("inspect", str(ran.folder)).stdout


def test_tokens_kept_are_those_of_the_journal(ran: Ran) -> None:
    """What cells say that they interrupted is what calls were continued from: no token lost or sampled twice."""
    stretches = [s for log in ran.logs.values() for call in log.calls for s in call.stretches]
    cut = [s for s in stretches if s.cause == "abort"]
    moves = lines(ran.folder / "moves.jsonl")
    assert sum(s.end - s.start for s in cut) == sum(m["tokens_kept"] for m in moves)
    assert len(cut) <= sum(m["calls_continued"] for m in moves)
    assert {s.engine for s in stretches} == {f"cell{cell}.0" for cell in range(ran.cells)}


def test_the_harness_saw_no_error_and_no_duplicate_and_what_the_journal_has(ran: Ran) -> None:
    seen: set[str] = set()
    for execution, log in ran.logs.items():
        told = lines(ran.folder / "executions" / execution / "harness.log")
        kinds = [next(k for k in line if k != "at") for line in told]
        assert kinds == ["request", "answer"] * 4, execution
        answers = [line["answer"] for line in told if "answer" in line]
        assert log.sealed
        assert log.delivered == {call.call for call in log.calls}
        assert len(log.calls) == len(answers)
        for call, answer in zip(log.calls, answers, strict=True):
            assert answer["id"] not in seen
            seen.add(answer["id"])
            assert answer["id"] == call.request["id"]
            assert answer["choices"][0]["message"]["content"] == call.response["text"]
            assert answer["choices"][0]["finish_reason"] == call.finish
            assert answer["usage"]["completion_tokens"] == len(call.output)
            assert call.finish in ("stop", "length"), "no call was cut"
            assert [s.start for s in call.stretches] == [0, *(s.end for s in call.stretches[:-1])]


def test_training_cells_are_a_prefix_and_nothing_is_published_past_a_cell_in_transit(ran: Ran) -> None:
    state = start(read_plan(ran.folder / "journal.jsonl"))
    for entry in read(ran.folder / "journal.jsonl"):
        state, actions = step(state, entry.event)
        assert state.training == tuple(range(len(state.training)))
        assert not (state.in_transit and any(isinstance(a, Publish) for a in actions))
        homes = sum(len(cell.homes) for cell in state.cells if cell.role is Role.TRAINING)
        assert homes == 0, "a lent cell leaves no execution behind"
    assert state.done


def test_every_execution_is_trained_and_none_is_stale(ran: Ran) -> None:
    rows = lines(ran.folder / "metrics.jsonl")
    assert [row["step"] for row in rows] == [0, 1]
    assert all(row["actor/grad_norm"] > 0 and row["staleness/max"] == 0 for row in rows)
    trained = [group for row in rows for group in row["groups"]]
    scores = lines(ran.folder / "scores.jsonl")
    assert sorted(s["execution"] for s in scores) == sorted(f"{g}-{n}" for g in trained for n in range(4))
    assert {s["verdict"] for s in scores} == {"scored"}


def test_log_probs_recomputed_from_the_folder_agree(ran: Ran) -> None:
    """Also of calls that went on at another cell, on keys and values from elsewhere."""
    found = check(ran.folder)
    assert found.tokens > 1000
    assert found.largest < 1e-3
    assert not found.missing


def test_the_time_of_the_cells_adds_up(ran: Ran) -> None:
    events = [entry.event for entry in read(ran.folder / "journal.jsonl")]
    uses = cell_use(read_plan(ran.folder / "journal.jsonl"), events)
    ready = [event.at for event in events if isinstance(event, CellReady)]
    for use, since in zip(uses, ready, strict=True):
        assert use.busy + use.idle + use.moving == pytest.approx(events[-1].at - since)
    assert all(use.busy > 0 and use.moving > 0 for use in uses)
