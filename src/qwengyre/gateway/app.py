"""The gateway: identity and routes. One request: token -> session -> dialect -> call -> held answer."""

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from qwengyre.errors import JournalError, MachineError
from qwengyre.gateway import body, echo, identity
from qwengyre.gateway.calls import Sealed
from qwengyre.gateway.canon import Refusal, Request
from qwengyre.gateway.dialects.anthropic import Anthropic
from qwengyre.gateway.dialects.base import Dialect, key_of
from qwengyre.gateway.dialects.chat import Chat
from qwengyre.gateway.dialects.completions import Completions
from qwengyre.gateway.dialects.responses import Responses
from qwengyre.gateway.forward import Engines
from qwengyre.gateway.generate import Shared
from qwengyre.gateway.hold import Held
from qwengyre.gateway.journal import CallLog, Writer, is_sealed, read_calls
from qwengyre.gateway.render import Renderer
from qwengyre.gateway.routing import Home, Switch, Tasks
from qwengyre.gateway.serve import Server
from qwengyre.gateway.session import Session, totals
from qwengyre.types import Routes, Sampling

_LOG = logging.getLogger(__name__)
DIALECTS: tuple[Dialect, ...] = (Chat(), Completions(), Responses(), Anthropic())
EngineLost = Callable[[int, int, str], Awaitable[None]]


class Gateway:
    """The HTTP door of the harnesses, in the event loop that starts it."""

    def __init__(  # noqa: PLR0913 - the one place that is wired by hand
        self,
        *,
        folder: Path,
        socket: Path | None,
        port: int,
        renderer: Renderer,
        sampling: Sampling,
        window: int,
        model: str,
        body_limit_mb: int = 64,
        on_engine_lost: EngineLost | None = None,
        seed: int = 0,
        keepalive_s: float = 15.0,
        signals: identity.Signals = identity.DEFAULT,
        live: bool = False,
        edits: echo.Edits = echo.NONE,
    ) -> None:
        """`folder` holds the journals, `<execution>.calls`; `window` is the most tokens of prompt and answer together.
        `signals` and `edits` say how the harness tells its threads apart, and what it does to its own history.

        `on_engine_lost(cell, incarnation, reason)` hears of an engine that gave no usable answer, once for each epoch
        of routes; its calls wait for newer routes, so it must answer with some (the same places under a new epoch if
        the engine lives).
        """
        self._folder, self._model, self._interval, self._signals = folder, model, keepalive_s, signals
        self._body_limit = body_limit_mb * 2**20
        self._on_engine_lost = on_engine_lost
        self._reported: set[tuple[int, int, int]] = set()
        self._make_shared = lambda: Shared(
            renderer, sampling, window, seed, Engines(), self._switch, Writer(), Tasks(), self._engine_lost, live, edits
        )
        self._switch = Switch()
        self._shared: Shared | None = None
        self._sessions: dict[str, Session] = {}
        self._sealed: dict[str, tuple[Sealed, float]] = {}
        self._tokens: dict[bytes, tuple[bytes, str]] = {}
        self._lock = asyncio.Lock()
        self._server = Server(self._application(), port, socket)

    async def start(self) -> str:
        """Serve on loopback and on the unix socket; returns the HTTP URL. Raises MachineError (a port in use).

        Executions that were open when a gateway died here are open again: their harnesses retry at once, and hear
        nothing of it but a dropped connection.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise MachineError(f"the folder {self._folder} cannot be created: {error.strerror}") from None
        self._shared = self._make_shared()
        await self._reopen()
        return await self._server.start()

    async def open(self, execution: str, token: str, temperature: float | None = None) -> None:
        """From now on `token` is this execution, sampled at `temperature` (0: greedy; None: the run's). Idempotent; a
        journal that exists is replayed and continued, at the temperature that it names.

        Raises JournalError on a damaged journal.
        """
        async with self._lock:
            digest = _digest(token)
            if execution not in self._sessions and execution not in self._sealed:
                await self._load(execution, digest, temperature)
            self._tokens[digest] = (digest, execution)

    async def route(self, routes: Routes) -> int:
        """Replace the routes unless these are older; returns the epoch in force, which acknowledges it."""
        return self._switch.replace(routes)

    async def seal(self, execution: str) -> Sealed:
        """No new calls (409), live ones are ended, the journal is closed and durable. Idempotent."""
        async with self._lock:
            if execution not in self._sealed and execution not in self._sessions:
                await self._load(execution, b"")
            if execution in self._sealed:
                return self._sealed[execution][0]
            session = self._sessions[execution]
            sealed = await session.seal()
            self._sealed[execution] = (sealed, session.queued.seconds)
            del self._sessions[execution]
            return sealed

    async def queued_s(self, execution: str) -> float:
        """Seconds of wall time in which the execution had calls and none of them ran: not its harness's time."""
        session = self._sessions.get(execution)
        return session.queued.seconds if session else self._sealed.get(execution, (None, 0.0))[1]

    async def live(self) -> list[dict[str, Any]]:
        """Calls in flight: execution, call, state, since (Unix seconds), cell, tokens so far."""
        return [call for session in self._sessions.values() for call in session.live()]

    async def stop(self) -> None:
        """Cut connections, end calls, flush journals (which stay open for the next gateway). Idempotent."""
        await self._server.stop()
        if self._shared is None:
            return
        for session in self._sessions.values():
            await session.stop()
        self._sessions.clear()
        await self._shared.tasks.close()
        self._shared = None

    async def _load(self, execution: str, token: bytes, temperature: float | None = None) -> None:
        assert self._shared is not None, "start first"
        path = self._folder / f"{execution}.calls"
        log = await asyncio.to_thread(read_calls, path) if path.exists() else CallLog((), frozenset(), False, {}, 0)
        if log.sealed:
            self._sealed[execution] = (totals(log), 0.0)
        else:
            session = Session(execution, path, log, self._shared)
            await session.open(token, temperature)
            self._sessions[execution] = session

    async def _reopen(self) -> None:
        for path in sorted(self._folder.glob("*.calls")):
            if is_sealed(path):
                continue
            try:
                await self._load(path.stem, b"")
            except JournalError as error:
                _LOG.error("%s", error)  # `open` raises it to whoever still wants this execution
                continue
            if path.stem in self._sessions and (token := self._sessions[path.stem].token):
                self._tokens[token] = (token, path.stem)

    async def _engine_lost(self, home: Home, reason: str) -> None:
        report = (home.cell, home.incarnation, home.epoch)
        if report in self._reported:
            return
        self._reported.add(report)
        _LOG.warning("cell %d.%d gave no answer: %s", home.cell, home.incarnation, reason)
        if self._on_engine_lost is not None:
            await self._on_engine_lost(home.cell, home.incarnation, reason)

    def _application(self) -> Starlette:
        routes: list[Route] = []
        for top in ("/x/{token}", ""):
            routes += (Route(top + d.path, self._call(d), methods=["POST"]) for d in DIALECTS)
            counting = (d for d in DIALECTS if d.count_path)
            routes += (Route(top + d.count_path, self._count(d), methods=["POST"]) for d in counting)
            routes += (Route(f"{top}/v1/models", self._models), Route(f"{top}/v1/models/{{model:path}}", self._models))
            routes.append(Route(f"{top}/", self._health))
        routes += [Route("/health", self._health), Route("/{rest:path}", self._unknown, methods=_METHODS)]
        return Starlette(routes=routes)

    def _call(self, dialect: Dialect) -> Callable[[HttpRequest], Awaitable[Any]]:
        async def call(request: HttpRequest) -> Any:
            try:
                session = self._session(request)
                asked = await self._asked(request, session, dialect)
                made = await session.begin(asked, dialect.head(self._model))
            except Refusal as refusal:
                return _refused(dialect, refusal)
            return Held(session, made, dialect, asked, self._interval)

        return call

    def _count(self, dialect: Dialect) -> Callable[[HttpRequest], Awaitable[Any]]:
        async def count(request: HttpRequest) -> Any:
            try:
                session = self._session(request)
                asked = await self._asked(request, session, dialect)
                return _json(dialect.counted(await session.measure(asked)), 200)
            except Refusal as refusal:
                return _refused(dialect, refusal)

        return count

    def _session(self, request: HttpRequest) -> Session:
        """The execution of the token in the path, else of the API key. Raises Refusal; never a new session."""
        token = request.path_params.get("token") or key_of(request.headers)
        digest = _digest(token)
        known, execution = self._tokens.get(digest, (b"", ""))
        if not hmac.compare_digest(digest, known):
            raise Refusal("unauthorized", "this token is not known: use the base URL or API key that you were given")
        session = self._sessions.get(execution)
        if session is None:
            raise Refusal("sealed", "this execution has ended; its token takes no more calls")
        return session

    async def _asked(self, request: HttpRequest, session: Session, dialect: Dialect) -> Request:
        """The canonical request, the wire's noise gone."""
        with session.bodies.arrival(dialect) as arriving:
            await body.read(request.headers, request.stream(), self._body_limit, arriving.feed)
            return self._signals.mark(arriving.request(), request.headers)

    async def _models(self, request: HttpRequest) -> Response:
        """In the words of both families of clients."""
        try:
            self._session(request)
        except Refusal as refusal:
            return _refused(DIALECTS[0], refusal)
        model = {"id": self._model, "object": "model", "created": 0, "owned_by": "qwengyre"}
        model |= {"type": "model", "display_name": self._model, "created_at": "1970-01-01T00:00:00Z"}
        listed = {"object": "list", "data": [model], "has_more": False, "first_id": self._model, "last_id": self._model}
        return _json(model if "model" in request.path_params else listed, 200)

    async def _health(self, request: HttpRequest) -> Response:
        return _json({"status": "ok"}, 200)

    async def _unknown(self, request: HttpRequest) -> Response:
        known = ", ".join(d.path for d in DIALECTS)
        refusal = Refusal("not_found", f"{request.method} here is not served; known: {known}, /v1/models")
        return _refused(DIALECTS[-1] if "anthropic-version" in request.headers else DIALECTS[0], refusal)


_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]


def _digest(token: str) -> bytes:
    """What tokens are looked up by, and what a journal holds of them: the time of a look-up of a digest says nothing
    about a token, and nothing leads back from it."""
    return hashlib.sha256(token.encode()).digest()


def _refused(dialect: Dialect, refusal: Refusal) -> Response:
    response = _json(dialect.error(refusal), refusal.status)
    if refusal.kind == "too_large":
        response.headers["connection"] = "close"  # what was not read is never read
    return response


def _json(value: Any, status: int) -> Response:
    return Response(orjson.dumps(value), status, media_type="application/json")
