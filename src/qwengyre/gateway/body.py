"""The bytes of a request: bounded before they are read, decompressed, and parsed only where they are new.

A harness sends its whole history with every call. What equals the last body up to the end of one of its items is
compared as it comes in, and neither copied nor parsed again: the items in front are missing in the JSON that is parsed,
and the messages that they gave stand in for them.
"""

import re
import zlib
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from qwengyre.gateway.canon import Message, Refusal, Request
from qwengyre.gateway.dialects.base import Dialect, Json, Known

_SMALL = 8192
"""Bodies shorter than this are parsed whole: there is nothing to win."""
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{},]', re.DOTALL)
_DEPTH = {b"{": 1, b"[": 1, b"}": -1, b"]": -1}


async def read(
    headers: Mapping[str, str], parts: AsyncIterator[bytes], limit: int, feed: Callable[[bytes], None]
) -> None:
    """Feed a body, decompressed, as it comes in. Raises Refusal("too_large") before reading one that says so, and as
    soon as one is."""
    said = headers.get("content-length", "0")
    if said.isdigit() and int(said) > limit:
        raise _too_large(limit)
    encoding = headers.get("content-encoding", "")
    packed, size = list[bytes](), 0
    async for part in parts:
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        if encoding:
            packed.append(part)
        else:
            feed(part)
    if encoding:
        feed(_plain(encoding, b"".join(packed), limit))


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


@dataclass(eq=False)
class _Seen:
    """A body. `head`: up to its list, bracket included; `text` is the rest. Item i ends at `ends[i]` of the text, and
    there are `cuts[i]` messages then. `readers`: bodies on their way that are compared with it, so that it stays."""

    key: str
    head: bytes
    text: bytearray
    ends: list[int]
    cuts: list[int]
    messages: tuple[Message, ...]
    readers: int = 0


class Bodies:
    """The last bodies of an execution, one for each of its threads that talk now."""

    def __init__(self, keep: int = 4) -> None:
        self._keep = keep
        self.seen: list[_Seen] = []

    def arrival(self, dialect: Dialect) -> "Arrival":
        """A body that comes in now; it is entered while it does."""
        return Arrival(self, dialect)

    def decode(self, body: bytes, dialect: Dialect) -> Request:
        """The request of a whole body. Raises Refusal."""
        with self.arrival(dialect) as arriving:
            arriving.feed(body)
            return arriving.request()

    def remember(self, old: _Seen | None, items: int, new: _Seen) -> None:
        """Keep `new`, whose first `items` items are those of `old` and whose text lacks them. The old text grows into
        the new one where nobody needs it any more."""
        kept = [s for s in self.seen if s is not old or items < len(s.ends) // 2]
        if old is not None and items:
            at = old.ends[items - 1]
            if old in kept or old.readers:
                new.text = old.text[:at] + new.text
            else:
                del old.text[at:]
                old.text += new.text
                new.text = old.text
        self.seen = [new, *kept][: self._keep]


class Arrival:
    """A body on its way. What it has in common with an earlier one is compared as it comes in, and never kept twice."""

    def __init__(self, bodies: Bodies, dialect: Dialect) -> None:
        self._bodies, self._dialect = bodies, dialect
        self._first: list[bytes] = []
        """All there is, while the list has not begun."""
        self._size, self._searched = 0, 0
        self._head: bytes | None = None
        self._held = [s for s in bodies.seen if s.key == dialect.array] if dialect.array else []
        self._alike = list(self._held)
        """Earlier bodies whose lists are equal to this one's so far."""
        self._old: _Seen | None = None
        self._common = 0
        """Bytes of the list that `_old` (`_alike`, while there are any) has too; the others are in `_tail`."""
        self._tail: list[bytes] = []

    def __enter__(self) -> "Arrival":
        for seen in self._held:
            seen.readers += 1
        return self

    def __exit__(self, *_: object) -> None:
        for seen in self._held:
            seen.readers -= 1
        self._held = []

    def feed(self, part: bytes) -> None:
        """The next bytes."""
        self._size += len(part)
        if self._head is not None:
            self._compare(part)
            return
        self._first.append(part)
        if self._size >= 2 * self._searched:  # each byte is searched a few times at most, however small the parts are
            self._find()

    def request(self) -> Request:
        """The request of the body, which is complete. Raises Refusal."""
        dialect = self._dialect
        if self._head is None:
            self._find()
        if self._head is None:
            return dialect.decode(loads(b"".join(self._first)), Known())
        old = self._alike[0] if self._alike else self._old
        items, rest = self._shared(old)
        same_head = any(s.head == self._head for s in self._held)
        if self._size < _SMALL or not (same_head or _is_top(self._head)):
            return dialect.decode(
                loads(self._head + (old.text[: old.ends[items - 1]] if old and items else b"") + rest), Known()
            )
        at = _next(rest, 0) if items else 0
        known = Known(old.messages[: old.cuts[items - 1]], items) if old and items else Known()
        request = dialect.decode(loads(self._head + rest[at:]), known)
        self._remember(old, items, rest, at, request)
        return request

    def _find(self) -> None:
        """Look for the list's beginning."""
        body = b"".join(self._first)
        self._first, self._searched = [body], len(body)
        start = _array_start(body, self._dialect.array) if self._dialect.array else -1
        if start >= 0:
            self._head = body[:start]
            self._compare(body[start:])

    def _compare(self, part: bytes) -> None:
        if not self._alike:
            self._tail.append(part)
            return
        alike = [s for s in self._alike if s.text.startswith(part, self._common)]
        if alike:
            self._alike, self._common = alike, self._common + len(part)
            return
        more, self._old = max(
            ((_common(s.text, self._common, part), s) for s in self._alike), key=lambda found: found[0]
        )
        self._alike, self._common = [], self._common + more
        self._tail.append(part[more:])

    def _shared(self, old: _Seen | None) -> tuple[int, bytes]:
        """How many first items the list shares with the old one, where messages end, and the text behind them."""
        items, tail = bisect_right(old.ends, self._common) if old else 0, b"".join(self._tail)
        while old and items:
            if old.cuts[items - 1] >= 0:
                rest = bytes(old.text[old.ends[items - 1] : self._common]) + tail
                at = _blank(rest, 0)
                if rest[at : at + 1] in (b",", b"]"):
                    return items, rest
            items -= 1
        return 0, (bytes(old.text[: self._common]) if old else b"") + tail

    def _remember(self, old: _Seen | None, items: int, rest: bytes, at: int, request: Request) -> None:
        assert self._head is not None
        base = old.ends[items - 1] if old and items else 0
        ends = old.ends[:items] if old else []
        ends += (base + end for end in _ends(rest, at))
        cuts = [*(old.cuts[:items] if old else ()), *request.cuts]
        if len(ends) != len(cuts):
            return
        messages = request.messages[request.wire.get("head", 0) :]
        new = _Seen(self._dialect.array, self._head, bytearray(rest), ends, cuts, messages)
        self.__exit__()
        self._bodies.remember(old, items, new)


def _array_start(body: bytes, key: str) -> int:
    """Where the first list under `key` begins, behind its bracket; -1 without one."""
    found = re.search(rb'"' + key.encode() + rb'"\s*:\s*\[', body)
    return found.end() if found else -1


def _is_top(head: bytes) -> bool:
    """Whether the list that begins behind the head is a value of the outermost object."""
    return sum(_DEPTH.get(token[0], 0) for token in _TOKEN.finditer(head)) == 2


def _common(text: bytearray, at: int, part: bytes) -> int:
    """How many first bytes of the part are those of the text from `at` on."""
    size = min(len(text) - at, len(part))
    if size <= 0:
        return 0
    other = np.frombuffer(text, np.uint8, size, at) != np.frombuffer(part, np.uint8, size)
    first = int(other.argmax())
    return first if other[first] else size


def _blank(body: bytes, at: int) -> int:
    while body[at : at + 1].isspace():
        at += 1
    return at


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
