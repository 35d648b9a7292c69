"""The bytes of a request: bounded before they are read, decompressed, and parsed only where they are new.

A harness sends its whole history with every call. What equals the last body up to the end of one of its items is not
parsed again: the items in front are cut out of the JSON, and the messages that they gave stand in for them.
"""

import re
import zlib
from bisect import bisect_right
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from qwengyre.gateway.canon import Message, Refusal, Request
from qwengyre.gateway.dialects.base import Dialect, Json, Known

_SMALL = 8192
"""Bodies shorter than this are parsed whole: there is nothing to win."""
_STEP = 65536
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{},]', re.DOTALL)
_DEPTH = {b"{": 1, b"[": 1, b"}": -1, b"]": -1}


async def read(headers: Mapping[str, str], parts: AsyncIterator[bytes], limit: int) -> bytes:
    """A body, decompressed. Raises Refusal("too_large") before reading one that says so, and as soon as one is."""
    said = headers.get("content-length", "0")
    if said.isdigit() and int(said) > limit:
        raise _too_large(limit)
    chunks, size = list[bytes](), 0
    async for part in parts:
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        chunks.append(part)
    return _plain(headers.get("content-encoding", ""), b"".join(chunks), limit)


def _plain(encoding: str, body: bytes, limit: int) -> bytes:
    for name in reversed([n.strip().lower() for n in encoding.split(",") if n.strip()]):
        if name in ("gzip", "x-gzip", "deflate"):
            body = _inflated(body, limit)
        elif name == "zstd":
            body = _zstd(body, limit)
        elif name != "identity":
            raise Refusal("invalid", f"content-encoding {name!r} is not known: send gzip, zstd, deflate or none")
        if len(body) > limit:
            raise _too_large(limit)
    return body


def _inflated(body: bytes, limit: int) -> bytes:
    try:
        return zlib.decompressobj(47).decompress(body, limit + 1)
    except zlib.error as error:
        raise Refusal("invalid", f"the body is not what its content-encoding says: {error}") from None


def _zstd(body: bytes, limit: int) -> bytes:
    try:
        import zstandard
    except ImportError:
        raise Refusal("invalid", "content-encoding zstd: this server lacks the package zstandard; send gzip") from None
    try:
        with zstandard.ZstdDecompressor().stream_reader(body) as reader:
            return reader.read(limit + 1)
    except zstandard.ZstdError as error:
        raise Refusal("invalid", f"the body is not what its content-encoding says: {error}") from None


def _too_large(limit: int) -> Refusal:
    return Refusal("too_large", f"the body is longer than gateway.body_limit_mb={limit // 2**20}")


def loads(body: bytes) -> Json:
    """A JSON object. Raises Refusal."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Refusal("invalid", f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise Refusal("invalid", f"the body must be an object, not {type(value).__name__}")
    return value  # pyright: ignore[reportUnknownVariableType]


@dataclass(frozen=True)
class _Seen:
    """A body. Its list begins at `start`; item i ends at `start + ends[i]`, and there are `cuts[i]` messages then."""

    key: str
    body: bytes
    start: int
    ends: list[int]
    cuts: list[int]
    messages: tuple[Message, ...]


class Bodies:
    """The last bodies of an execution, one for each of its threads that talk now."""

    def __init__(self, keep: int = 4) -> None:
        self._keep = keep
        self._seen: list[_Seen] = []

    def decode(self, body: bytes, dialect: Dialect) -> Request:
        """The request of a body. Raises Refusal."""
        start = _array_start(body, dialect.array) if dialect.array and len(body) >= _SMALL else -1
        if start < 0:
            return dialect.decode(loads(body), Known())
        seen, items = self._longest(dialect.array, body, start)
        if seen is None:
            if not _is_top(body, start):
                return dialect.decode(loads(body), Known())
            known, at = Known(), start
        else:
            known, at = Known(seen.messages[: seen.cuts[items - 1]], items), start + seen.ends[items - 1]
            at = _next(body, at)
        request = dialect.decode(loads(body[:start] + body[at:] if at > start else body), known)
        self._remember(seen, items, _Seen(dialect.array, body, start, [], [], ()), at, request)
        return request

    def _longest(self, key: str, body: bytes, start: int) -> tuple[_Seen | None, int]:
        """The body that shares the most items with this one, and how many; they end where messages do."""
        best: tuple[_Seen | None, int] = (None, 0)
        for seen in self._seen:
            if seen.key != key or (
                (seen.start != start or seen.body[:start] != body[:start]) and not _is_top(body, start)
            ):
                continue
            items = bisect_right(seen.ends, _common(seen, body, start))
            while items and (seen.cuts[items - 1] < 0 or body[_blank(body, start + seen.ends[items - 1])] not in b",]"):
                items -= 1
            if items > best[1]:
                best = (seen, items)
        return best

    def _remember(self, old: _Seen | None, items: int, new: _Seen, at: int, request: Request) -> None:
        ends, cuts = (old.ends[:items], old.cuts[:items]) if old else ([], [])
        ends += (end - new.start for end in _ends(new.body, at))
        cuts += request.cuts
        if len(ends) != len(cuts):
            return
        messages = request.messages[request.wire.get("head", 0) :]
        kept = [s for s in self._seen if s is not old or items < len(s.ends) // 2]
        self._seen = [_Seen(new.key, new.body, new.start, ends, cuts, messages), *kept][: self._keep]


def _array_start(body: bytes, key: str) -> int:
    """Where the first list under `key` begins, behind its bracket; -1 without one."""
    found = re.search(rb'"' + key.encode() + rb'"\s*:\s*\[', body)
    return found.end() if found else -1


def _is_top(body: bytes, start: int) -> bool:
    """Whether the list that begins there is a value of the outermost object."""
    depth = sum(_DEPTH.get(token[0], 0) for token in _TOKEN.finditer(body, 0, start))
    return depth == 2


def _common(seen: _Seen, body: bytes, start: int) -> int:
    """How many bytes of the two lists are equal."""
    size = min(len(seen.body) - seen.start, len(body) - start, seen.ends[-1] if seen.ends else 0)
    at = 0
    while at < size:
        end = min(size, at + _STEP)
        if seen.body[seen.start + at : seen.start + end] != body[start + at : start + end]:
            break
        at = end
    if at < size:
        pairs = zip(seen.body[seen.start + at : seen.start + at + _STEP], body[start + at :], strict=False)
        at += next(i for i, (a, b) in enumerate(pairs) if a != b)
    return at


def _blank(body: bytes, at: int) -> int:
    while body[at : at + 1].isspace():
        at += 1
    return at if at < len(body) else -1


def _next(body: bytes, at: int) -> int:
    """Behind the comma after an item, or at the bracket that ends the list."""
    at = _blank(body, at)
    return at + 1 if body[at : at + 1] == b"," else at


def _ends(body: bytes, at: int) -> list[int]:
    """Where each item from `at` on ends, up to the list's own end."""
    ends: list[int] = []
    depth, last = 0, at
    for token in _TOKEN.finditer(body, at):
        text: Any = token[0]
        if depth == 0 and text in (b",", b"]"):
            if last > at or text == b",":
                ends.append(last)
            if text == b"]":
                return ends
            at = token.end()
            last = at
        else:
            depth += _DEPTH.get(text, 0)
            last = token.end()
    return []
