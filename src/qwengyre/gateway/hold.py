"""A held answer on the wire: the client's connection lives while the call waits, runs, moves and is journaled.

Streaming: headers at once, a no-op event every `interval` seconds, then the whole answer. Not streaming: nothing before
`interval`, then 200, chunked, one space every `interval`, then the JSON (blanks before JSON are JSON).
"""

import asyncio
from itertools import groupby
from operator import attrgetter
from typing import Any

import orjson
from starlette.types import Message, Receive, Scope, Send

from qwengyre.gateway.calls import Call
from qwengyre.gateway.canon import Refusal, Request
from qwengyre.gateway.dialects.base import Dialect
from qwengyre.gateway.parse import Delta
from qwengyre.gateway.session import Session

_FIRST = asyncio.FIRST_COMPLETED
_JSON = [(b"content-type", b"application/json")]
_EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


class Held:
    """The ASGI response of one call. Waits for: the answer, or the client's leaving. Sends the last byte only after
    the call is durable."""

    def __init__(self, session: Session, call: Call, dialect: Dialect, request: Request, interval: float) -> None:
        self._session, self._call, self._dialect, self._request = session, call, dialect, request
        self._interval = interval
        self._started = False
        self._stream = dialect.stream(request, call.head, session.prompted(call))
        self._heard = session.listener(call) if request.stream else None
        self._at = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hold, answer, and tell the session whether the client was there to take it."""
        gone = asyncio.create_task(_left(receive))
        delivered = False
        try:
            if self._request.stream:
                await self._send(send, self._stream.opening())
            await self._wait(send, gone)
            delivered = not gone.done() and await self._finish(send, gone)
        finally:
            gone.cancel()
            self._session.leave(self._call, delivered=delivered)

    async def _wait(self, send: Send, gone: asyncio.Task[None]) -> None:
        answer = self._call.answer
        while not gone.done() and not answer.done():
            news = asyncio.ensure_future(self._call.news.wait())
            done, _ = await asyncio.wait({gone, answer, news}, timeout=self._interval, return_when=_FIRST)
            news.cancel()
            if gone.done() or answer.done():
                return
            if not done:
                await self._send(send, self._stream.ping() if self._request.stream else b" ")
            elif more := self._more():
                await self._send(send, more)

    def _more(self) -> bytes:
        """What has been sampled since the last time, as far as it is certain."""
        self._call.news.clear()
        if self._heard is None:
            return b""
        fresh, self._at = self._call.said[self._at :], len(self._call.said)
        deltas = [delta for token in fresh for delta in self._heard(token) if delta.kind != "call"]
        kinds = groupby(deltas, key=attrgetter("kind"))  # many ids, one event: a chunk has its price
        return b"".join(self._stream.more(Delta(kind, "".join(d.text for d in same))) for kind, same in kinds)

    async def _finish(self, send: Send, gone: asyncio.Task[None]) -> bool:
        for _ in range(4):  # a hang-up that has arrived already is seen before anything is sent into it
            await asyncio.sleep(0)
        if gone.done():
            return False
        error = self._call.answer.exception()
        if error is not None:
            assert isinstance(error, Refusal)
            await self._refuse(send, error)
            return False
        answer = self._call.answer.result()
        if self._request.stream:
            await self._send(send, self._stream.events(answer), last=True)
        else:
            await self._send(send, self._dialect.body(self._request, self._call.head, answer), last=True)
        return True

    async def _refuse(self, send: Send, refusal: Refusal) -> None:
        if self._request.stream:
            await self._send(send, self._stream.failed(refusal), last=True)
        else:
            body = orjson.dumps(self._dialect.error(refusal))
            await self._send(send, body, last=True, status=refusal.status)

    async def _send(self, send: Send, body: bytes, *, last: bool = False, status: int = 200) -> None:
        if not self._started:
            self._started = True
            headers = _EVENTS if self._request.stream else _JSON
            await send(_message("start", status=status, headers=headers))
        await send(_message("body", body=body, more_body=not last))


def _message(kind: str, **fields: Any) -> Message:
    return {"type": f"http.response.{kind}", **fields}


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
