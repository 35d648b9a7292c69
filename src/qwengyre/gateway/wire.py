"""One HTTP/1.1 request on a connection of its own. A general client takes longer over it than the rest of a call.

httptools reads the answer. `https` is not spoken: engines are on this machine or behind a proxy on it.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

import httptools

_CONNECT_S = 10.0
_CHUNK = 2**16


class Broken(Exception):
    """No answer, or not a whole one: one line that says why."""


@dataclass(frozen=True)
class Reply:
    """A whole answer."""

    status: int
    content: bytes

    @property
    def text(self) -> str:
        """For people."""
        return self.content.decode(errors="replace")


class _Reading:
    """What the parser tells of an answer."""

    def __init__(self) -> None:
        self.kind, self.done = b"", False
        self.parts: list[bytes] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self.kind = value

    def on_body(self, body: bytes) -> None:
        self.parts.append(body)

    def on_message_complete(self) -> None:
        self.done = True


async def post(url: str, body: bytes, line: Callable[[bytes], None] | None = None) -> Reply:
    """POST JSON and wait for the whole answer. `line` is told each line of an answer in lines as it comes in; the reply
    has what follows the last one.

    Raises Broken. Cancelling closes the connection, which is how the other end hears of it.
    """
    where = urlsplit(url)
    try:
        async with asyncio.timeout(_CONNECT_S):
            reader, writer = await asyncio.open_connection(where.hostname, where.port or 80, limit=_CHUNK)
    except (OSError, TimeoutError) as error:
        raise Broken(f"no connection: {error or type(error).__name__}") from None
    try:
        return await _exchange(reader, writer, _head(where.netloc, where.path, len(body)) + body, line)
    except (OSError, httptools.HttpParserError) as error:
        raise Broken(f"{type(error).__name__}: {error}") from None
    finally:
        writer.transport.abort()


def _head(host: str, path: str, length: int) -> bytes:
    lines = (f"POST {path} HTTP/1.1", f"host: {host}", "content-type: application/json", f"content-length: {length}")
    return "\r\n".join((*lines, "connection: close", "", "")).encode()


async def _exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes, line: Callable[[bytes], None] | None
) -> Reply:
    reading = _Reading()
    parser = httptools.HttpResponseParser(reading)
    writer.write(request)
    with contextlib.suppress(ConnectionError):  # an answer that came before all was sent is an answer
        await writer.drain()
    while not reading.done:
        data = await reader.read(_CHUNK)
        if not data:
            raise ConnectionError("the connection ended before the answer did")
        parser.feed_data(data)
        if line is not None and reading.kind.startswith(b"application/x-ndjson"):
            *whole, last = b"".join(reading.parts).split(b"\n")
            reading.parts = [last]
            for text in whole:
                line(text)
    return Reply(parser.get_status_code(), b"".join(reading.parts))
