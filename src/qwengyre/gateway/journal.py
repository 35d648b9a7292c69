"""The journal of one execution's calls: append-only frames, on disk before the last byte of an answer is sent.

A frame is magic, length and CRC-32 (12 bytes, little-endian), then a msgpack record: `open`, `call`, `delivered` or
`seal`. Ids and log-probs are little-endian bytes; a call holds only what it adds to the tree, so the file is linear
in new tokens. A torn last frame (the process or the machine died) is cut off; damage before a whole frame is an error.
"""

import asyncio
import contextlib
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Any, cast

import msgpack
import numpy as np

from qwengyre.errors import JournalError
from qwengyre.trajectory.tree import Tree
from qwengyre.types import Kind, ModelCall, Segment, Stretch

SCHEMA = 1
_MAGIC = b"QGf1"
_HEADER = Struct("<4sII")
_SEAL: dict[str, Any] = {"type": "seal"}
_PLAIN = ("call", "thread", "parent", "finish", "temperature", "trainable", "match", "request", "response", "timings")


@dataclass(frozen=True)
class CallLog:
    """What a journal holds. `meta` is its `open` record; `size` the bytes up to the end of the last whole frame."""

    calls: tuple[ModelCall, ...]
    delivered: frozenset[int]
    sealed: bool
    meta: dict[str, Any]
    size: int


def read_calls(path: Path) -> CallLog:
    """Read a journal; a torn tail is ignored. Raises JournalError on damage before it."""
    calls: list[ModelCall] = []
    delivered: set[int] = set()
    sealed, meta, size = False, dict[str, Any](), 0
    for record, end in _frames(path):
        match record["type"]:
            case "open":
                meta = meta or record
            case "call":
                calls.append(_decode(record))
            case "delivered":
                delivered.add(record["call"])
            case "seal":
                sealed = True
            case other:
                raise JournalError(f"{path}: record type {other!r} is unknown; was it written by a later version?")
        size = end
    if meta.get("schema", SCHEMA) != SCHEMA:
        raise JournalError(f"{path}: schema {meta['schema']}, this version reads {SCHEMA}")
    return CallLog(tuple(calls), frozenset(delivered), sealed, meta, size)


def is_sealed(path: Path) -> bool:
    """Whether the journal ends with its seal, without reading it whole."""
    seal = _frame(_SEAL)
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - len(seal)))
        return file.read() == seal


def rebuild(path: Path) -> Tree:
    """The execution's tree from its journal alone. Sampled rows of undelivered calls are in `withheld`."""
    return grow(read_calls(path))


def grow(log: CallLog) -> Tree:
    """The tree of a journal that was read."""
    tree = Tree()
    for call in log.calls:
        row = tree.add_call(call)[-1]
        if call.call not in log.delivered:
            tree.withheld.add(row)
    return tree


class Writer:
    """Writes all journals of a gateway in batches: while one is on its way to the disk, the next one fills."""

    def __init__(self) -> None:
        self._pending: list[tuple[Journal, bytes, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None

    def write(self, journal: "Journal", data: bytes) -> asyncio.Future[None]:
        """Queue bytes; the future is done once they are durable, and fails with JournalError where they are not."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda f: f.cancelled() or f.exception())  # not every record is waited for
        self._pending.append((journal, data, future))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._flush())
        return future

    async def _flush(self) -> None:
        while self._pending:
            batch, self._pending = self._pending, []
            errors = await asyncio.to_thread(_store, [(journal, data) for journal, data, _ in batch])
            for journal, _, future in batch:
                error = errors.get(journal)
                if future.done():
                    continue
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(JournalError(f"{journal.path} cannot be written: {error}"))

    async def idle(self) -> None:
        """Wait until all that is queued is on disk or has failed."""
        while self._task is not None and not self._task.done():
            await asyncio.shield(self._task)


class Journal:
    """An open journal. Appends keep their order; after a failed write every later one fails too."""

    def __init__(self, path: Path, writer: Writer, size: int) -> None:
        """`size`: where the last whole frame ends; what lies behind it is cut off. Creates the file if needed."""
        self.path = path
        self._writer = writer
        self.broken: OSError | None = None
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(self.descriptor, size)
        os.lseek(self.descriptor, size, os.SEEK_SET)
        if size == 0:
            _sync_folder(path.parent)

    def opened(self, execution: str, **meta: Any) -> asyncio.Future[None]:
        """The first record."""
        return self._append({"type": "open", "schema": SCHEMA, "execution": execution, **meta})

    def call(self, call: ModelCall) -> asyncio.Future[None]:
        """Append a finished call; the future is done once it is durable."""
        return self._append(_encode(call))

    def delivered(self, call: int) -> asyncio.Future[None]:
        """The answer's last byte went out to a client that was there."""
        return self._append({"type": "delivered", "call": call})

    def seal(self) -> asyncio.Future[None]:
        """The last record."""
        return self._append(_SEAL)

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _append(self, record: dict[str, Any]) -> asyncio.Future[None]:
        return self._writer.write(self, _frame(record))


def _store(batch: list[tuple[Journal, bytes]]) -> dict[Journal, OSError]:
    """Write and fsync in a thread. Returns the journals that failed."""
    parts: dict[Journal, list[bytes]] = {}
    for journal, data in batch:
        parts.setdefault(journal, []).append(data)
    for journal, data in parts.items():
        try:
            if journal.broken is None:
                _write(journal.descriptor, b"".join(data))
        except OSError as error:
            journal.broken = error
    return {journal: journal.broken for journal in parts if journal.broken is not None}


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    os.fsync(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, descriptor)
        os.fsync(descriptor)


def _frame(record: dict[str, Any]) -> bytes:
    payload = cast("bytes", msgpack.packb(record))
    length = len(payload).to_bytes(4, "little")
    return _HEADER.pack(_MAGIC, len(payload), zlib.crc32(length + payload)) + payload


def _frames(path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    data, at = path.read_bytes(), 0
    while at < len(data):
        payload = _payload(data, at)
        if payload is None:
            if _whole_frame_after(data, at):
                raise JournalError(f"{path} is damaged at byte {at}, before whole records; restore it from a copy")
            return
        at += _HEADER.size + len(payload)
        yield msgpack.unpackb(payload, strict_map_key=False), at


def _payload(data: bytes, at: int) -> bytes | None:
    """The payload of the whole frame at `at`, None where there is none."""
    start = at + _HEADER.size
    if start > len(data):
        return None
    magic, length, crc = _HEADER.unpack_from(data, at)
    payload = data[start : start + length]
    whole = magic == _MAGIC and len(payload) == length
    return payload if whole and zlib.crc32(data[at + 4 : at + 8] + payload) == crc else None


def _whole_frame_after(data: bytes, at: int) -> bool:
    while (at := data.find(_MAGIC, at + 1)) >= 0:
        if _payload(data, at) is not None:
            return True
    return False


def _encode(call: ModelCall) -> dict[str, Any]:
    record = {name: getattr(call, name) for name in _PLAIN}
    record |= {
        "type": "call",
        "suffix": call.suffix.astype("<i4").tobytes(),
        "output": call.output.astype("<i4").tobytes(),
        "logprobs": call.logprobs.astype("<f4").tobytes(),
        "segments": [[int(s.kind), s.length] for s in call.segments],
        "stretches": [_stretch(s) for s in call.stretches],
    }
    return record


def _decode(record: dict[str, Any]) -> ModelCall:
    return ModelCall(
        **{name: record[name] for name in _PLAIN},
        suffix=np.frombuffer(record["suffix"], "<i4").astype(np.int32, copy=False),
        output=np.frombuffer(record["output"], "<i4").astype(np.int32, copy=False),
        logprobs=np.frombuffer(record["logprobs"], "<f4").astype(np.float32, copy=False),
        segments=tuple(Segment(Kind(kind), length) for kind, length in record["segments"]),
        stretches=tuple(Stretch(*s) for s in record["stretches"]),
    )


def _stretch(stretch: Stretch) -> list[Any]:
    """`Stretch(*fields)` reads it; the KV version stands only where it is another."""
    fields = [stretch.start, stretch.end, stretch.version, stretch.engine, stretch.cause]
    return fields if stretch.kv_version < 0 else [*fields, stretch.kv_version]
