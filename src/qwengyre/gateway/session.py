"""One execution: its tree, its journal, and its calls in flight. Everything here runs in the gateway's event loop."""

import asyncio
import hashlib
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from qwengyre.gateway.body import Bodies
from qwengyre.gateway.calls import Call, Sealed, answer_of, model_call
from qwengyre.gateway.canon import Head, Refusal, Request, ToolCall
from qwengyre.gateway.dialects.base import Prompted
from qwengyre.gateway.generate import SEALED, Generation, Shared
from qwengyre.gateway.journal import CallLog, Journal
from qwengyre.gateway.match import Index, Prompt, fingerprint
from qwengyre.gateway.parse import Delta
from qwengyre.trajectory.tree import ROOT, Tree
from qwengyre.types import Kind, ModelCall

_LOG = logging.getLogger(__name__)
_ABORT_S = 10.0
"""How long an engine may take to end an aborted call before its connection is cut."""

_INLINE = 2**14
"""Characters that are rendered at once: to hand them to a thread would take longer."""


class Stopwatch:
    """Seconds during which something held."""

    def __init__(self) -> None:
        self._total, self._since = 0.0, None

    def set(self, holds: bool) -> None:
        """From now on it holds, or not."""
        self._total, self._since = self.seconds, time.monotonic() if holds else None

    @property
    def seconds(self) -> float:
        """So far."""
        return self._total + (0.0 if self._since is None else time.monotonic() - self._since)


class Session:
    """Grows the tree by whole calls. `open` -> `begin`* -> `seal`."""

    def __init__(self, execution: str, path: Path, log: CallLog, shared: Shared) -> None:
        """`log` is what the journal at `path` holds; the session goes on from there. It must not be sealed."""
        self.execution = execution
        self._shared = shared
        self.tree = Tree()
        self._index = Index(self.tree, shared.edits)
        self._next = 0
        self._tasks: dict[Call, asyncio.Task[None]] = {}
        self._kept: dict[str, list[Call]] = {}
        """Calls whose client went away, by the key of an equal request."""
        self._undelivered: set[int] = set()
        self._counts = {"calls": 0, "delivered": 0, "in": 0, "out": 0}
        self.bodies = Bodies()
        self._generation = Generation(execution, self.tree, shared, self._note)
        self.queued = Stopwatch()
        self._journal = Journal(path, shared.writer, log.size)
        self.token: bytes = log.meta.get("token", b"")
        """Digest of the token that the journal was opened with."""
        self._generation.temperature = log.meta.get("temperature", shared.sampling.temperature)
        self._new = not log.meta
        for call in log.calls:
            self._replay(call, call.call in log.delivered)

    async def open(self, token: bytes, temperature: float | None = None) -> None:
        """Write the journal's first record, if it is new: it holds the digest of the token, and the temperature."""
        if self._new:
            self._new, self.token, shared = False, token, self._shared
            if temperature is not None:
                self._generation.temperature = temperature
            facts = {"renderer": shared.renderer.digest, "window": shared.window, "at": time.time()}
            facts["temperature"] = self._generation.temperature
            await self._journal.opened(self.execution, token=token, **facts)

    async def begin(self, request: Request, head: Head) -> Call:
        """The call that answers this request: a kept one that an equal request left, or a new one, which starts.

        Raises Refusal: sealed, invalid (the template refuses the messages), too_long.
        """
        if self._generation.sealing:
            raise Refusal("sealed", SEALED)
        thread = request.thread or fingerprint(request)
        chains = self._index.chains(thread, request)
        key = _key(thread, chains[-1], request)
        if (kept := self._take_kept(key)) is not None:
            return self._resume(kept)
        prompt = await self._prompt(request, chains)
        length, window = self._length(prompt), self._shared.window
        room = window - length
        if room < 1:
            raise Refusal("too_long", _too_long(window, length), "messages", tokens=length, window=window)
        if self._generation.sealing:
            raise Refusal("sealed", SEALED)
        call = Call(self._next, key, request, head, prompt)
        self._next += 1
        call.thread = thread
        limit = self._shared.sampling.max_tokens
        call.budget = min(request.max_tokens or limit, limit, room)
        self._deliver_echoed(prompt.parent)
        self._start(call)
        return call

    async def measure(self, request: Request) -> int:
        """The length of a request's prompt in tokens. Raises Refusal."""
        chains = self._index.chains(request.thread or fingerprint(request), request)
        return self._length(await self._prompt(request, chains))

    def prompted(self, call: Call) -> Prompted:
        """How long the prompt of a call is, and how much of it was there before."""
        length = self._length(call.prompt)
        return Prompted(length, length - len(call.prompt.suffix))

    def listener(self, call: Call) -> Callable[[int], list[Delta]] | None:
        """For a stream that is told what is sampled at once: what each id adds to the answer."""
        request, shared = call.request, self._shared
        if not shared.live or request.stops or request.raw is not None:
            return None
        return shared.renderer.listen(tools=request.tools if request.parse_tools else ())

    def leave(self, call: Call, *, delivered: bool) -> None:
        """The client is done with the call: it has the answer, or it went away and the call is kept."""
        call.attached = False
        if delivered:
            self._deliver(call.number)
        elif not self._generation.sealing and not _failed(call):
            call.wanted.clear()
            self._kept.setdefault(call.key, []).append(call)
            self._abort(call)
        self._note()

    async def seal(self) -> Sealed:
        """End live calls, keeping partial output as undelivered, and close the journal."""
        self._generation.sealing = True
        for call, task in self._tasks.items():
            if call.state == "running":
                self._abort(call)
            elif call.state == "queued":
                task.cancel()
        tasks = list(self._tasks.values())
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=_ABORT_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await self._journal.seal()
        self._journal.close()
        return Sealed(self._counts["calls"], self._counts["delivered"], self._counts["in"], self._counts["out"])

    async def stop(self) -> None:
        """The gateway stops: calls end where they are and the journal stays open for the next one to continue."""
        self._generation.sealing = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._shared.writer.idle()
        self._journal.close()

    def live(self) -> list[dict[str, Any]]:
        """Calls that have not ended. `since`: Unix seconds of the last change of state."""
        return [
            {
                "execution": self.execution,
                "call": call.number,
                "state": call.state if call.attached else "kept",
                "since": call.since,
                "cell": call.cell,
                "tokens": call.tokens,
            }
            for call in self._tasks
        ]

    async def _prompt(self, request: Request, chains: list[bytes]) -> Prompt:
        match = self._index.match(request, chains)
        work = partial(self._index.render, self._shared.renderer, request, match)
        short = request.raw is None and sum(len(m.text) for m in request.messages[match.matched :]) <= _INLINE
        found = work() if short else await asyncio.to_thread(work)
        return self._index.prompt(found, match)

    def _start(self, call: Call) -> None:
        task = asyncio.create_task(self._run(call))
        self._tasks[call] = task
        task.add_done_callback(lambda _: self._over(call))
        self._note()

    def _over(self, call: Call) -> None:
        del self._tasks[call]
        call.fail(Refusal("sealed", SEALED))  # cancelled before its first step: nothing else has told the client
        self._note()

    async def _run(self, call: Call) -> None:
        """A call's life. Waits for: routes, the engine, the disk. Ends when it is answered or the session is."""
        try:
            await self._generation.run(call)
            call.enter("done")
            record = self._record(call)
            await self._journal.call(record)
            call.answer.set_result(answer_of(record, self._length(call.prompt)))
        except Refusal as refusal:
            self._ended(call, refusal)
        except asyncio.CancelledError:
            self._ended(call, Refusal("sealed", SEALED))
            raise
        except Exception:
            _LOG.exception("execution %s, call %d failed", self.execution, call.number)
            self._ended(call, Refusal("failed", "the call failed inside the gateway; see its log"))
        finally:
            call.enter("answered")
            self._note()

    def _record(self, call: Call) -> ModelCall:
        """Grow the tree by a finished call and return its record, which is then journaled before anything else."""
        prompt = self._index.advance(call.prompt)
        request = call.request
        tools = request.tools if request.parse_tools else ()
        cut = call.finish != "stop"
        parsed = self._shared.renderer.parse(call.output, tools=tools, stops=request.stops, cut=cut)
        if parsed.stop:
            call.cut(parsed.kept)
        if request.raw is not None:
            parsed = replace(parsed, text=parsed.raw, reasoning="", calls=())
        calls = tuple(ToolCall(f"call_{secrets.token_hex(12)}", *c) for c in parsed.calls)
        chain = self._index.answer_chain(prompt, parsed.text, calls)
        call.timings["done"] = time.time()
        record = model_call(call, prompt, parsed, calls, chain, self._generation.temperature)
        self._generation.grown(call, self._add(record))
        return record

    def _add(self, record: ModelCall) -> int:
        rows = self.tree.add_call(record)
        self._index.add(record, rows)
        self._undelivered.add(record.call)
        self._counts["calls"] += 1
        self._counts["in"] += self.tree.lengths[rows[-1]] - len(record.output)
        self._counts["out"] += len(record.output)
        return rows[-1]

    def _ended(self, call: Call, refusal: Refusal) -> None:
        """No answer. Tokens that were sampled are recorded all the same, undelivered."""
        if call.tokens and not call.timings.get("done"):
            call.finish = call.finish or "abort"
            self._journal.call(self._record(call))
        call.fail(refusal)

    def _take_kept(self, key: str) -> Call | None:
        kept = self._kept.pop(key, [])
        while kept:
            call = kept.pop(0)
            if not _failed(call):
                self._kept[key] = kept
                return call
        return None

    def _resume(self, call: Call) -> Call:
        call.attached = True
        call.wanted.set()
        self._note()
        return call

    def _replay(self, record: ModelCall, delivered: bool) -> None:
        """A call from the journal. One that was not delivered is kept for an equal request, as before the restart."""
        self._add(record)
        self._next = max(self._next, record.call + 1)
        if delivered:
            self._undelivered.discard(record.call)
            self._counts["delivered"] += 1
        elif record.finish != "abort":
            asked = record.request
            head = Head(asked["id"], asked["created"], asked["model"])
            prompt = Prompt(record.parent, record.suffix, record.segments, (), b"", 0, record.match)
            call = Call(record.call, asked["key"], Request(()), head, prompt)
            call.attached, call.state = False, "answered"
            call.answer.set_result(answer_of(record, self._length(prompt)))
            self._kept.setdefault(call.key, []).append(call)

    def _abort(self, call: Call) -> None:
        if call.attempt is not None:
            call.aborting = True
            self._shared.tasks.spawn(self._shared.engines.abort(*call.attempt))

    def _deliver(self, number: int) -> None:
        if number in self._undelivered and not self._generation.sealing:
            self._undelivered.discard(number)
            self._counts["delivered"] += 1
            self._journal.delivered(number)

    def _deliver_echoed(self, row: int) -> None:
        """An answer that comes back in a request was delivered, whatever the socket said."""
        if self._undelivered:
            sampled = {self.tree.calls[r] for r in self.tree.path(row) if self.tree.kinds[r] is Kind.SAMPLED}
            echoed = sampled & self._undelivered
            for number in echoed:
                self._deliver(number)
            if echoed:
                self._kept = {k: [c for c in v if c.number not in echoed] for k, v in self._kept.items()}

    def _length(self, prompt: Prompt) -> int:
        return len(prompt.suffix) + (self.tree.lengths[prompt.parent] if prompt.parent != ROOT else 0)

    def _note(self) -> None:
        """The harness waits for an engine while it has calls and none of them runs."""
        states = [call.state for call in self._tasks if call.attached]
        self.queued.set("queued" in states and "running" not in states)


def _key(thread: str, chain: bytes, request: Request) -> str:
    """Equal for equal canonical requests of a thread."""
    asked = (thread, chain, request.max_tokens, request.constrained, request.parse_tools, request.stops)
    return hashlib.blake2b(repr(asked).encode(), digest_size=16).hexdigest()


def _failed(call: Call) -> bool:
    return call.answer.done() and call.answer.exception() is not None


def _too_long(window: int, length: int) -> str:
    return (
        f"This model's maximum context length is {window} tokens. However, your messages resulted in {length} tokens. "
        "Please reduce the length of the messages."
    )


def totals(log: CallLog) -> Sealed:
    """What the journal of a sealed execution amounts to."""
    tree = Tree()
    rows = [tree.add_call(call)[-1] for call in log.calls]
    tokens_out = sum(len(call.output) for call in log.calls)
    return Sealed(len(log.calls), len(log.delivered), sum(tree.lengths[r] for r in rows) - tokens_out, tokens_out)
