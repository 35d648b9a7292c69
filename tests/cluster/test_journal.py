"""The run's journal: what was written is the run."""

import json
from dataclasses import fields
from pathlib import Path
from zlib import crc32

import pytest

from qwengyre.cluster.journal import SCHEMA_VERSION, Journal, read, read_plan, replay, restore, snapshot
from qwengyre.errors import JournalError
from qwengyre.schedule import events as ev
from qwengyre.schedule.actions import ACTIONS
from qwengyre.schedule.events import EVENTS
from qwengyre.schedule.state import Asked, Cell, Evaluation, Evaluations, Execution, Group, Plan, Policy, State
from qwengyre.schedule.step import start, step
from qwengyre.sim.run import Record, simulate
from qwengyre.sim.workload import Failures, Workload

PLAN = Plan.for_policy("elastic", cells=2, groups_per_step=2, group_size=2, steps=3, capacity=3, phi=1)


@pytest.fixture(scope="module")
def simulated() -> tuple[State, Record]:
    work = Workload(failures=Failures(dropped=0.2, cell_life_h=1.4))
    state, record = simulate(PLAN, work, 1)
    assert any(isinstance(event, ev.RolledBack) for event, _ in record.entries)
    return state, record


def write(path: Path, record: Record, first: int = 0, last: int | None = None) -> None:
    with Journal(path, PLAN) as journal:
        for event, actions in record.entries[first:last]:
            journal.append(event, actions)


def test_a_replay_reproduces_the_run(tmp_path: Path, simulated: tuple[State, Record]) -> None:
    state, record = simulated
    write(tmp_path / "journal.jsonl", record)
    assert replay(tmp_path / "journal.jsonl") == state
    assert read_plan(tmp_path / "journal.jsonl") == PLAN
    assert [(e.event, e.actions) for e in read(tmp_path / "journal.jsonl")] == record.entries


def test_a_journal_is_continued(tmp_path: Path, simulated: tuple[State, Record]) -> None:
    state, record = simulated
    path = tmp_path / "journal.jsonl"
    write(path, record, 0, 10)
    write(path, record, 10, None)
    assert replay(path) == state
    assert path.read_text().count('"schema_version"') == 1


def test_every_line_is_in_the_file_when_append_returns(tmp_path: Path, simulated: tuple[State, Record]) -> None:
    _, record = simulated
    path = tmp_path / "journal.jsonl"
    journal = Journal(path, PLAN)
    for number, (event, actions) in enumerate(record.entries[:5], start=2):
        journal.append(event, actions)
        assert path.read_bytes().count(b"\n") == number
    journal.close()
    journal.close()


def test_a_torn_last_line_is_cut_off_wherever_it_tears(tmp_path: Path, simulated: tuple[State, Record]) -> None:
    _, record = simulated
    path = tmp_path / "journal.jsonl"
    write(path, record, 0, 3)
    whole, keep = path.read_bytes(), [(e.event, e.actions) for e in read(path)][:2]
    before = whole[: whole[:-1].rfind(b"\n") + 1]
    for end in range(len(before), len(whole)):
        path.write_bytes(whole[:end])
        assert [(e.event, e.actions) for e in read(path)] == keep
    path.write_bytes(whole[:-7] + b"\0\0\0")
    write(path, record, 2, None)
    assert [(e.event, e.actions) for e in read(path)] == record.entries


def test_a_torn_header_is_written_anew(tmp_path: Path, simulated: tuple[State, Record]) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"journal":"qwen')
    write(path, simulated[1])
    assert replay(path) == simulated[0]


def test_damage_before_the_end_is_an_error(tmp_path: Path, simulated: tuple[State, Record]) -> None:
    path = tmp_path / "journal.jsonl"
    write(path, simulated[1], 0, 5)
    lines = path.read_bytes().splitlines(keepends=True)
    for damaged, message in (
        (b'{"event": {"ty\n', "line 3 is damaged"),
        (b"[]\n", "line 3 is no JSON object"),
        (b'{"event": {"type": "placd", "at": 0.0}, "actions": []}\n', "line 3: unknown event"),
        (b'{"actions": []}\n', "line 3: unknown event"),
        (b'{"event": {"type": "started", "at": 0.0}}\n', "line 3: 'actions'"),
    ):
        path.write_bytes(b"".join([*lines[:2], damaged, *lines[3:]]))
        with pytest.raises(JournalError, match=message):
            replay(path)


def test_a_replay_that_asks_something_else_is_an_error(tmp_path: Path, simulated: tuple[State, Record]) -> None:
    path = tmp_path / "journal.jsonl"
    write(path, simulated[1])
    text = path.read_text()
    path.write_text(text.replace('"cell":1', '"cell":0', 1))
    with pytest.raises(JournalError, match=r"the journal asks .*this program asks"):
        replay(path)
    lines = text.splitlines(keepends=True)
    lines.remove(next(line for line in lines if '"type":"ended"' in line))
    path.write_text("".join(lines))
    with pytest.raises(JournalError, match="before its Ended"):
        replay(path)


def test_another_plan_is_refused(tmp_path: Path, simulated: tuple[State, Record]) -> None:
    path = tmp_path / "journal.jsonl"
    write(path, simulated[1], 0, 2)
    other = Plan.for_policy("elastic", cells=2, groups_per_step=2, group_size=2, steps=4, capacity=3, phi=1)
    with pytest.raises(JournalError, match="steps: 3, now 4"):
        Journal(path, other)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    for text, message in (
        ("hello\n", "line 1 is damaged"),
        ('{"a": 1}\n', "is no journal of a run"),
        ('{"journal": "qwengyre", "schema_version": 99, "plan": {}}\n', "schema version 99"),
        ('{"journal": "qwengyre", "schema_version": 2, "plan": {}}\n', "no Plan can be read"),
    ):
        path.write_text(text)
        with pytest.raises(JournalError, match=message):
            replay(path)


FIRST = (
    '{"journal": "qwengyre", "schema_version": 1, "plan": {"cells": 2, "capacity": 3, "policy": {"kind": "elastic"}}}\n'
    '{"event": {"type": "started", "at": 0.0}, "actions": []}\n'
)
"""What the first schema looked like."""


def test_a_journal_of_an_older_version_is_one_line_to_the_user(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text(FIRST)
    said = r"schema version 1, this program reads \d+: use the version of qwengyre that wrote it, or begin a new run$"
    for reading in (read_plan, replay, lambda path: list(read(path)), lambda path: Journal(path, PLAN)):
        with pytest.raises(JournalError, match=said):
            reading(path)
    assert path.read_text() == FIRST


FIELDS = "2-5dfb8787"
"""Of what this version's journals and snapshots hold."""


def test_other_fields_are_another_version() -> None:
    kinds = [Plan, Policy, Evaluations, State, Group, Execution, Cell, Asked, Evaluation]
    names = [
        f"{kind.__name__}.{field.name}"
        for kind in [*kinds, *EVENTS.values(), *ACTIONS.values()]
        for field in fields(kind)
    ]
    found = f"{SCHEMA_VERSION}-{crc32(' '.join(names).encode()):08x}"
    assert found == FIELDS, "what journals hold has changed: raise journal.SCHEMA_VERSION, then this"


def test_a_snapshot_shortens_a_replay(tmp_path: Path, simulated: tuple[State, Record]) -> None:
    state, record = simulated
    path, snap = tmp_path / "journal.jsonl", tmp_path / "scheduler.json"
    write(path, record)
    for events in (0, 7, len(record.entries)):
        middle = start(PLAN)
        for event, _ in record.entries[:events]:
            middle, _ = step(middle, event)
        snapshot(snap, middle, events)
        assert restore(snap) == (middle, events)
        assert replay(path, snap) == state
    snapshot(snap, state, len(record.entries) + 1)
    with pytest.raises(JournalError, match="do not belong together"):
        replay(path, snap)
    snap.write_text(json.dumps({"schema_version": SCHEMA_VERSION}))
    with pytest.raises(JournalError, match="no snapshot"):
        restore(snap)
