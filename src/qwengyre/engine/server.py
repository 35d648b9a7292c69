"""The HTTP surface of a token engine, served inside the caller's event loop (its shape: `engine/base.py`)."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from qwengyre.engine.calls import Call, Completion, EngineClosedError, RefusedCallError, Span, TokenEngine
from qwengyre.engine.prefixes import Prefixes
from qwengyre.errors import EngineError
from qwengyre.types import Ids

_STOP_GRACE_S = 5
_LARGEST_ID = 2**31 - 1


def build_app(engine: TokenEngine, name: str) -> Starlette:
    """The ASGI app over `engine`; `name` is stamped on every answer."""

    prefixes = Prefixes()

    async def generate(request: Request) -> Response:
        try:
            body = await request.body()
            call, prefix = read_call(body, prefixes)
            if b'"stream":true' in body[-4096:] and orjson.loads(body).get("stream"):
                return await _streamed(engine, call, finished(prefix))
            completion = await _until_disconnect(request, engine.generate(call))
        except RefusedCallError as refusal:
            return _error(400, refusal.kind, str(refusal))
        except EngineClosedError as closed:
            return _error(409, "closed", str(closed))
        except EngineError as failure:
            return _error(500, "engine", str(failure))
        return Response(status_code=499) if completion is None else _json(finished(prefix)(call, completion))

    def finished(prefix: str) -> Callable[[Call, Completion], dict[str, Any]]:
        return lambda call, done: write_completion(done, name) | {"kept": prefixes.keep(call, done, prefix)}

    async def abort(request: Request) -> Response:
        try:
            ids = orjson.loads(await request.body() or b"{}").get("request_ids") or None
        except (orjson.JSONDecodeError, AttributeError):
            return _error(400, "invalid", "the body is no JSON object; expected {'request_ids': [...]}")
        return _json({"aborted": await engine.abort(ids)})

    async def health(_: Request) -> Response:
        state = engine.health()
        body = {"status": state.status, "engine": state.engine, "version": str(state.version)}
        status = 500 if state.status.startswith("failed") else 200
        return _json(body | {"calls": state.calls, "window": state.window}, status)

    return Starlette(
        routes=[
            Route("/inference/v1/generate", generate, methods=["POST"]),
            Route("/abort_requests", abort, methods=["POST"]),
            Route("/pause", _command(engine.close), methods=["POST"]),
            Route("/resume", _command(engine.open), methods=["POST"]),
            Route("/sleep", _command(engine.sleep), methods=["POST"]),
            Route("/wake_up", _command(engine.wake), methods=["POST"]),
            Route("/health", health),
        ]
    )


def read_call(body: bytes, prefixes: Prefixes) -> tuple[Call, str]:
    """Parse the body of a generate request; the second value names the request that it goes on from, "" for none.

    Raises RefusedCallError, "invalid" naming the field that is wrong.
    """
    try:
        fields = orjson.loads(body)
        sampling = fields.get("sampling_params") or {}
        prefix = fields.get("prefix")
        ids = _ids(fields["token_ids"], some=prefix is None)
        if prefix is not None:
            ids = np.concatenate([prefixes.find(prefix), ids])
        seed = sampling.get("seed")
        call = Call(
            request_id=str(fields["request_id"]),
            token_ids=ids,
            max_tokens=int(sampling["max_tokens"]),
            temperature=float(sampling.get("temperature", 1.0)),
            stop_token_ids=tuple(int(i) for i in sampling.get("stop_token_ids") or ()),
            seed=None if seed is None else int(seed),
            handle=str(fields.get("handle") or ""),
        )
        return call, "" if prefix is None else str(prefix["request_id"])
    except RefusedCallError:
        raise
    except KeyError as missing:
        raise RefusedCallError("invalid", f"the body lacks {missing}") from None
    except (ValueError, TypeError, AttributeError, OverflowError) as wrong:
        raise RefusedCallError("invalid", f"the body cannot be read as a generate request: {wrong}") from None


def _ids(values: Any, *, some: bool) -> Ids:
    ids = np.asarray(values) if values or some else np.empty(0, np.int32)
    if ids.ndim != 1 or (some and ids.size == 0) or ids.dtype.kind not in "iu":
        raise ValueError("token_ids must be a non-empty list of integers")
    if ids.size and (ids.min() < 0 or ids.max() > _LARGEST_ID):
        raise ValueError(f"token_ids must lie in [0, {_LARGEST_ID}]")
    return ids.astype(np.int32)


def write_completion(completion: Completion, name: str) -> dict[str, Any]:
    """The body of a 200 answer."""
    ids = completion.token_ids.tolist()
    pairs = zip(ids, completion.logprobs.tolist(), strict=True)
    choice = {
        "index": 0,
        "token_ids": ids,
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
        "logprobs": {"content": [{"token_id": token, "logprob": logprob} for token, logprob in pairs]},
        "weight_versions": [_span(span) for span in completion.spans],
    }
    return {"request_id": completion.request_id, "engine": name, "choices": [choice]}


def _span(span: Span) -> dict[str, Any]:
    stamped = {"version": str(span.version), "start": span.start, "end": span.end}
    return stamped if span.kv_version < 0 else stamped | {"kv_version": str(span.kv_version)}


async def _streamed(
    engine: TokenEngine, call: Call, finished: Callable[[Call, Completion], dict[str, Any]]
) -> Response:
    """Tokens as they are sampled, one JSON object a line, and the whole answer last. Raises what `generate` raises
    before the first token; a client that goes away ends the call."""
    loop, news = asyncio.get_running_loop(), asyncio.Queue[int]()
    task = asyncio.ensure_future(
        engine.generate(replace(call, progress=lambda token: loop.call_soon_threadsafe(news.put_nowait, token)))
    )
    first = asyncio.ensure_future(news.get())
    await asyncio.wait((task, first), return_when=asyncio.FIRST_COMPLETED)
    if task.done() and task.exception() is not None:
        first.cancel()
        task.result()

    async def lines() -> AsyncIterator[bytes]:
        waiting = first
        try:
            while not task.done():
                await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
                if waiting.done():
                    tokens = [waiting.result(), *(news.get_nowait() for _ in range(news.qsize()))]
                    waiting = asyncio.ensure_future(news.get())
                    yield orjson.dumps({"token_ids": tokens}) + b"\n"
            yield orjson.dumps(finished(call, task.result())) + b"\n"
        finally:
            waiting.cancel()
            task.cancel()

    return StreamingResponse(lines(), media_type="application/x-ndjson")


async def _until_disconnect(request: Request, work: Awaitable[Completion]) -> Completion | None:
    """Result of `work`; None, with `work` cancelled, when the client goes away first."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        return None
    finally:
        for pending in (task, gone):
            pending.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _command(method: Callable[[], Awaitable[None]]) -> Callable[[Request], Awaitable[Response]]:
    async def answer(_: Request) -> Response:
        try:
            await method()
        except EngineError as refusal:
            return _error(409, "state", str(refusal))
        return _json({})

    return answer


def _json(body: dict[str, Any], status: int = 200) -> Response:
    return Response(orjson.dumps(body), status_code=status, media_type="application/json")


def _error(status: int, kind: str, message: str) -> Response:
    return _json({"error": {"type": kind, "message": message}}, status)


class _Uvicorn(uvicorn.Server):
    """uvicorn as a guest of somebody else's loop: no signal handlers, and it says when it serves."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.serving = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.serving.set()


class EngineServer:
    """Serves `app` on loopback. Life: start -> stop; both idempotent. Works in any thread's event loop."""

    def __init__(self, app: Starlette, port: int = 0) -> None:
        self._app = app
        self._port = port
        self._url = ""
        self._server: _Uvicorn | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Bind 127.0.0.1 and serve; returns the base URL. Raises OSError when the port is taken."""
        if self._task is not None:
            return self._url
        # asyncio turns Nagle off only where the protocol is named: else each answer waits 40 ms for an acknowledgement.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", self._port))
        except OSError:
            listener.close()
            raise
        self._url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        config = uvicorn.Config(
            self._app,
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_keep_alive=60,
            timeout_graceful_shutdown=_STOP_GRACE_S,
        )
        self._server = _Uvicorn(config)
        self._task = asyncio.create_task(self._server.serve([listener]), name=f"engine server {self._url}")
        serving = asyncio.create_task(self._server.serving.wait())
        await asyncio.wait((self._task, serving), return_when=asyncio.FIRST_COMPLETED)
        if not self._server.serving.is_set():
            serving.cancel()
            await self._task
        return self._url

    async def stop(self) -> None:
        """Answer what is being answered (at most 5 s), then free the port."""
        task, self._task = self._task, None
        if task is None or self._server is None:
            return
        self._server.should_exit = True
        await task
