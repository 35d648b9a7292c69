"""The run's journal, `journal.jsonl`: append-only. A header line with the plan, then a line an event with its actions.

    {"journal": "qwengyre", "schema_version": 2, "plan": {...}}
    {"event": {"type": "started", "at": 0.0}, "actions": [{"type": "dispatch", "id": "dispatch-0", ...}, ...]}

A line is handed to the operating system before its actions begin, so the death of the process loses nothing that was
begun; it is forced to the disk in groups (at most `SYNC_S` late), so a power cut may lose the newest lines. A torn
last line (no newline) is cut off at the next opening; any other damage is a JournalError.

The journal alone replays the run. A snapshot only shortens that: it is the whole State after `events` lines, as
JSON; `replay` folds the rest of the journal into it.
"""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import orjson

from qwengyre.errors import JournalError
from qwengyre.schedule.actions import Action
from qwengyre.schedule.codec import decode, decode_action, decode_event, encode
from qwengyre.schedule.events import Event
from qwengyre.schedule.state import Plan, State
from qwengyre.schedule.step import start, step

SCHEMA_VERSION = 2
"""Of journal and snapshot. It grows whenever the fields of a plan, a state, an event or an action change."""
SYNC_S = 0.5


@dataclass(frozen=True)
class Entry:
    """One line: what happened, and what the scheduler asked for it."""

    event: Event
    actions: tuple[Action, ...]


class Journal:
    """Append to a new journal, or to one that exists, whose plan must be the same. Raises JournalError."""

    def __init__(self, path: Path, plan: Plan) -> None:
        self._path = path
        if path.exists():
            whole = _whole(path)
            if whole and (found := read_plan(path)) != plan:
                raise JournalError(f"{path} was written for another plan ({_difference(found, plan)}): resume that one")
            os.truncate(path, whole)
        self._file = path.open("ab", buffering=0)
        self._synced = time.monotonic()
        if self._file.tell() == 0:
            self._write({"journal": "qwengyre", "schema_version": SCHEMA_VERSION, "plan": encode(plan)})
            self.sync()

    def append(self, event: Event, actions: Sequence[Action]) -> None:
        """Write one line. The actions may begin when this returns."""
        self._write({"event": encode(event), "actions": [encode(action) for action in actions]})
        if time.monotonic() - self._synced > SYNC_S:
            self.sync()

    def sync(self) -> None:
        """Force everything written to the disk."""
        os.fsync(self._file.fileno())
        self._synced = time.monotonic()

    def close(self) -> None:
        """Sync and close; a second call does nothing."""
        if not self._file.closed:
            self.sync()
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, line: dict[str, Any]) -> None:
        data = memoryview(orjson.dumps(line) + b"\n")
        while data:
            data = data[self._file.write(data) :]


def read_plan(path: Path) -> Plan:
    """The plan in the header. Raises JournalError."""
    with path.open("rb") as file:
        header = _parse(path, 1, file.readline())
    if header.get("journal") != "qwengyre":
        raise JournalError(f"{path} is no journal of a run: give the journal.jsonl of a run folder")
    if header.get("schema_version") != SCHEMA_VERSION:
        version = header.get("schema_version")
        raise JournalError(
            f"{path} has schema version {version}, this program reads {SCHEMA_VERSION}: use the version of qwengyre "
            f"that wrote it, or begin a new run"
        )
    return decode(Plan, header.get("plan"))


def read(path: Path) -> Iterator[Entry]:
    """The entries in order, without a torn last line. Raises JournalError at a damaged line."""
    read_plan(path)
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if number > 1 and line.endswith(b"\n"):
                yield _entry(path, number, line)


def replay(path: Path, snapshot: Path | None = None) -> State:
    """The state after the journal's last line. Raises JournalError when the rules ask something else than was recorded.

    With `snapshot`, the lines before it are read but not folded again.
    """
    state, done = restore(snapshot) if snapshot else (start(read_plan(path)), 0)
    number = 0
    for number, entry in enumerate(read(path), start=1):
        if number > done:
            state = _fold(path, number, state, entry)
    if number < done:
        raise JournalError(
            f"{path} has {number} events, but the snapshot was taken after {done}: they do not belong together"
        )
    return state


def snapshot(path: Path, state: State, events: int) -> None:
    """Write the state after `events` events to a file, complete or not at all."""
    new = path.with_suffix(path.suffix + ".new")
    with new.open("wb") as file:
        file.write(orjson.dumps({"schema_version": SCHEMA_VERSION, "events": events, "state": encode(state)}))
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def restore(path: Path) -> tuple[State, int]:
    """(state, number of events before it) of a snapshot. Raises JournalError."""
    value = _parse(path, 1, path.read_bytes())
    if value.get("schema_version") != SCHEMA_VERSION or not isinstance(value.get("events"), int):
        raise JournalError(
            f"{path} is no snapshot of schema version {SCHEMA_VERSION}: remove it, the journal is enough"
        )
    return decode(State, value.get("state")), value["events"]


def _fold(path: Path, number: int, state: State, entry: Entry) -> State:
    try:
        state, actions = step(state, entry.event)
    except ValueError as error:
        raise JournalError(f"{path}, event {number} ({entry.event.type}): {error}") from None
    if actions != entry.actions:
        raise JournalError(
            f"{path}, event {number} ({entry.event.type}): the journal asks {_names(entry.actions)}, "
            f"this program asks {_names(actions)}: resume with the version that wrote it"
        )
    return state


def _names(actions: Sequence[Action]) -> str:
    shown = ", ".join(map(str, actions[:3])) + (f" and {len(actions) - 3} more" if len(actions) > 3 else "")
    return shown or "nothing"


def _entry(path: Path, number: int, line: bytes) -> Entry:
    value = _parse(path, number, line)
    try:
        return Entry(decode_event(value.get("event")), tuple(decode_action(action) for action in value["actions"]))
    except (JournalError, KeyError, TypeError) as error:
        raise JournalError(f"{path}, line {number}: {error}") from None


def _parse(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise JournalError(f"{path}, line {number} is damaged: {error}") from None
    if not isinstance(value, dict):
        raise JournalError(f"{path}, line {number} is no JSON object")
    return value


def _whole(path: Path) -> int:
    """Bytes up to the end of the last complete line."""
    with path.open("rb") as file:
        return file.read().rfind(b"\n") + 1


def _difference(found: Plan, given: Plan) -> str:
    names = [name for name in vars(found) if getattr(found, name) != getattr(given, name)]
    return ", ".join(f"{name}: {getattr(found, name)}, now {getattr(given, name)}" for name in names)
