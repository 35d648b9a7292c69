"""The embedded engine: a torch model in this process, its parameters shared with the trainer, behind HTTP.

All torch work runs in one thread of its own with one torch thread. The event loop and that thread exchange messages
only: a job goes in, its result comes back by `call_soon_threadsafe`; jobs run between two forward passes.
"""

import asyncio
import contextlib
import logging
import queue
import random
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, TypeVar

import psutil
import torch
from torch import nn

from qwengyre.engine.batch import Batch
from qwengyre.engine.calls import Call, Completion, EngineClosedError, Health, RefusedCallError
from qwengyre.engine.exchange import Exchange
from qwengyre.engine.forward import choose_decoder, chunk_tokens, copy_weights, kv_shape
from qwengyre.engine.server import EngineServer, build_app
from qwengyre.errors import EngineError
from qwengyre.types import KVBlock

_LOG = logging.getLogger(__name__)
_MEMORY_SHARE = 0.25
_COLDEST, _HOTTEST = 1e-3, 1e3
_COUNTS = ("prefill_tokens", "reused_tokens", "decode_tokens", "calls", "aborted")
_MOVED = ("aborted_tokens", "aborted_kv", "moved_tokens_in", "moved_tokens_out")
_LEAST_TIMED = 64
"""Prompt tokens of a pass below which its time says nothing about prefilling."""

T = TypeVar("T")
Job = Callable[[Batch], object]
Weights = Mapping[str, torch.Tensor] | Callable[[], None]


class EmbeddedEngine:
    """An `Engine` over `model`, a transformers decoder. See `engine/base.py` for the life and the HTTP shape.

    `eos_ids` stop every call, besides its own stop ids. `window` in tokens, prompt and output together. `kv_tokens`
    bounds the tokens of keys and values kept, calls and resting prefixes together (default: what `max_batch` windows
    need, at most a quarter of the free memory; at least one window). `executions` overrides the derived capacity.

    `kv_on_publish`: "drop" (exact: keys and values go with their weights, live calls prefill prompt and output again)
    or "keep" (nothing is computed again; spans of calls that go on name the older `kv_version` they were conditioned
    on, and their log-probs are not what the trainer recomputes).
    """

    def __init__(  # noqa: PLR0913 - all but the model are named at every call
        self,
        model: nn.Module,
        *,
        name: str,
        eos_ids: Sequence[int],
        window: int,
        version: int = 0,
        seed: int = 0,
        max_batch: int = 64,
        kv_tokens: int | None = None,
        executions: int | None = None,
        kv_on_publish: Literal["drop", "keep"] = "drop",
        port: int = 0,
    ) -> None:
        if kv_on_publish not in ("drop", "keep"):
            raise ValueError(f"kv_on_publish={kv_on_publish!r}: expected 'drop' or 'keep'")
        if kv_tokens is not None and kv_tokens < window:
            raise ValueError(f"kv_tokens {kv_tokens} cannot hold one window of {window} tokens")
        self._model = model
        self._name = name
        self._eos = frozenset(eos_ids)
        self._window = window
        self._version = version
        self._seed = seed
        self._max_batch = max_batch
        self._kv_tokens = kv_tokens or _default_kv_tokens(model, window, max_batch)
        self._executions = executions
        self._keep_kv = kv_on_publish == "keep"
        self._exchange = Exchange(name, model)
        self._vocabulary: int = model.get_input_embeddings().num_embeddings  # pyright: ignore
        self._status = "closed"
        self._loaded = True
        self._failure = ""
        self._accepted = 0
        self._live: dict[str, asyncio.Future[Completion]] = {}
        self._asked: set[asyncio.Future[Any]] = set()
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._batch: Batch | None = None
        self._prefilled: tuple[int, float] = (0, 0.0)
        """Tokens and seconds of the passes that mostly prefilled."""
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server = EngineServer(build_app(self, name), port)

    @property
    def name(self) -> str:
        """Unique in the run."""
        return self._name

    # Life

    async def start(self) -> str:
        """Start the torch thread, check that it reproduces the model, serve. Raises EngineError if it does not."""
        if self._thread is None:
            self._loop = asyncio.get_running_loop()
            ready: asyncio.Future[None] = self._loop.create_future()
            self._thread = threading.Thread(target=self._work, args=(ready,), name=f"engine {self._name}", daemon=True)
            self._thread.start()
            try:
                await ready
            except BaseException:
                self._jobs.put(None)
                self._thread = None
                raise
        return await self._server.start()

    async def stop(self) -> None:
        """Abort everything, end the thread, free the port."""
        self._status = "closed"
        if self._thread is not None:
            await self.abort()
            await self._server.stop()
            self._jobs.put(None)
            await asyncio.to_thread(self._thread.join)
            self._thread, self._batch = None, None
            self._abandon(f"engine {self._name} is stopped")

    async def open(self) -> None:
        """Take calls from now on. Raises EngineError while asleep, or when nothing was loaded since the last sleep."""
        self._check()
        if self._status == "asleep":
            raise EngineError(f"engine {self._name} is asleep: wake it and load weights before opening it")
        if not self._loaded:
            raise EngineError(f"engine {self._name} woke without weights: load a version before opening it")
        self._status = "open"

    async def close(self) -> None:
        """Answer new calls with 409 from now on; running calls go on."""
        if self._status == "open":
            self._status = "closed"

    async def sleep(self) -> None:
        """Free all KV memory. Raises EngineError while open or while calls run."""
        if self._status == "asleep":
            return
        if self._status == "open" or self._live:
            raise EngineError(
                f"engine {self._name} cannot sleep: it is {self._status} with {len(self._live)} calls; close it and "
                "abort its calls first"
            )
        self._status, self._loaded = "asleep", False
        await self._do(lambda batch: batch.free())

    async def wake(self) -> None:
        """Be ready to load and open."""
        if self._status == "asleep":
            self._status = "closed"

    async def load(self, version: int, weights: Weights | None = None) -> None:
        """From the next token on, generate with the new weights and stamp `version`.

        `weights`: None (the shared parameters were updated in place), name -> tensor (copied in place between two
        passes), or a function to be run between two passes, which updates the parameters in place. Works asleep too:
        parameters are never unloaded. Raises EngineError when a name or shape is unknown (nothing is changed then).
        """

        def apply(batch: Batch) -> None:
            if callable(weights):
                weights()
            elif weights is not None:
                copy_weights(self._model, weights)
            batch.reload(version)

        await self._do(apply)
        self._version, self._loaded = version, True

    # Calls

    async def generate(self, call: Call) -> Completion:
        """Run one call to its end. Cancelling the caller ends the call.

        Raises EngineClosedError (not open), RefusedCallError (can never be served), EngineError (the engine failed).
        """
        self._check()
        if self._status != "open":
            raise EngineClosedError(f"engine {self._name} is {self._status}")
        self._refuse(call)
        self._accepted += 1
        rng = random.Random(f"{self._seed}/{self._accepted}" if call.seed is None else call.seed)
        stops = self._eos.union(call.stop_token_ids)
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._live[call.request_id] = future

        def answer(completion: Completion) -> None:
            self._tell(self._settle, completion)

        self._jobs.put(lambda batch: batch.submit(call, rng, stops, answer))
        try:
            return await future
        finally:
            if future.cancelled():
                self._jobs.put(lambda batch: batch.abort([call.request_id]))

    async def abort(self, request_ids: list[str] | None = None) -> int:
        """End calls (None: all) with their partial output; returns how many were running or queued."""
        if self._thread is None or self._failure:
            return 0
        return await self._do(lambda batch: batch.abort(request_ids))

    async def calls(self) -> int:
        """Calls running or queued now."""
        return len(self._live)

    async def capacity(self) -> int:
        """C_e: as given, else as many windows as fit the KV budget, at most `max_batch`."""
        return self._executions or max(1, min(self._max_batch, self._kv_tokens // self._window))

    async def stats(self) -> dict[str, float]:
        """Counters since start: prefill_tokens (computed from prompts, or again), reused_tokens (taken from kept
        KV), decode_tokens (sampled), calls, aborted, aborted_tokens (partial output that aborted calls kept),
        aborted_kv (tokens whose keys and values they had),
        moved_tokens_out and moved_tokens_in (KV handed over). Of now: kv_tokens (reserved),
        pinned_tokens (exported, not freed), prefill_rate (tokens a second; 0: not known)."""
        batch, (tokens, seconds) = self._batch, self._prefilled
        counts = {name: 0.0 if batch is None else float(batch.counts[name]) for name in (*_COUNTS, *_MOVED)}
        used, pinned = (0, 0) if batch is None else (batch.kv_used, batch.kv_pinned)
        rate = tokens / seconds if seconds else 0.0
        return counts | {"kv_tokens": float(used), "pinned_tokens": float(pinned), "prefill_rate": rate}

    # Hand-over of keys and values

    async def export_kv(self, handles: Collection[str]) -> tuple[KVBlock, ...]:
        """End the calls of these executions with their partial output, and pin the keys and values of all their
        sequences, live or resting: prompt and output, short of the last token. Both between the same two passes, so
        that nothing is sampled after the cut; a call that has ended by itself by then leaves its sequence too."""
        return await self._do(lambda batch: self._exchange.export(batch, handles))

    async def expect_kv(self, handles: Collection[str], limit_s: float) -> None:
        """Calls of these executions wait until `import_kv` names them, at most `limit_s` seconds; 0: no longer."""
        wanted = frozenset(handles)
        if limit_s > 0:
            await self._do(lambda batch: batch.expect(wanted))
            asyncio.get_running_loop().call_later(limit_s, self._jobs.put, lambda batch: batch.arrived(wanted))
        else:
            await self._do(lambda batch: batch.arrived(wanted))

    async def import_kv(self, blocks: Sequence[KVBlock], handles: Collection[str]) -> int:
        """Keep the blocks (not copied: nobody writes to their data) as resting prefixes, which calls find by their ids;
        those that wait for the keys and values of `handles` go on, whatever happens here. Returns the tokens kept:
        fewer where calls hold too much memory. Raises EngineError, keeping none, when a block's stamp is not this
        engine's: prefill again."""
        return await self._do(lambda batch: self._exchange.adopt(batch, blocks, handles))

    async def free_kv(self, ids: Collection[str], moved: bool) -> None:
        """Unpin exported blocks; `moved`: the destination has confirmed them. Unknown ids were freed before."""
        await self._do(lambda batch: self._exchange.unpin(batch, ids, moved))

    def health(self) -> Health:
        """State as `/health` reports it."""
        status = f"failed: {self._failure}" if self._failure else self._status
        return Health(status, self._name, self._version, len(self._live), self._window)

    def _refuse(self, call: Call) -> None:
        total = len(call.token_ids) + call.max_tokens
        if call.max_tokens < 1:
            raise RefusedCallError("invalid", f"max_tokens {call.max_tokens} must be at least 1")
        if call.temperature != 0 and not _COLDEST <= call.temperature <= _HOTTEST:
            message = f"temperature {call.temperature} must be 0 (greedy) or lie in [{_COLDEST}, {_HOTTEST}]"
            raise RefusedCallError("invalid", message)
        if len(call.token_ids) == 0 or call.token_ids.min() < 0 or call.token_ids.max() >= self._vocabulary:
            raise RefusedCallError("invalid", f"token_ids must be one or more ids in [0, {self._vocabulary})")
        if total > self._window:
            message = f"prompt of {len(call.token_ids)} + max_tokens {call.max_tokens} = {total} tokens exceed the "
            raise RefusedCallError("too_long", f"{message}window of {self._window}")
        if call.request_id in self._live:
            raise RefusedCallError("invalid", f"request_id {call.request_id!r} is running already; make a new one")

    def _settle(self, completion: Completion) -> None:
        future = self._live.pop(completion.request_id)
        if not future.done():
            future.set_result(completion)

    def _check(self) -> None:
        if self._failure:
            raise EngineError(f"engine {self._name} failed and serves no more calls: {self._failure}")
        if self._thread is None:
            raise EngineError(f"engine {self._name} is not started")

    # Between the event loop and the torch thread

    async def _do(self, work: Callable[[Batch], T]) -> T:
        """Run `work` in the torch thread between two forward passes; returns or raises what it does."""
        self._check()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def job(batch: Batch) -> None:
            try:
                result = work(batch)
            except Exception as error:
                self._tell(_resolve, future, None, error)
            else:
                self._tell(_resolve, future, result, None)

        self._asked.add(future)
        future.add_done_callback(self._asked.discard)
        self._jobs.put(job)
        return await future

    def _tell(self, receive: Callable[..., None], *args: Any) -> None:
        """From the torch thread: run `receive` in the event loop, in order. A loop that is gone hears nothing."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(receive, *args)

    def _fail(self, failure: str) -> None:
        self._failure = failure
        self._abandon(f"engine {self._name} failed: {failure}")

    def _abandon(self, reason: str) -> None:
        """Nobody waits for a torch thread that is gone."""
        waiting = [*self._live.values(), *self._asked]
        self._live = {}
        for future in waiting:
            _resolve(future, None, EngineError(reason))

    def _work(self, ready: asyncio.Future[None]) -> None:
        """The torch thread: jobs, then a forward pass, for as long as there are calls; else wait for a job."""
        try:
            batch = self._build()
        except Exception as error:
            self._tell(_resolve, ready, None, error)
            return
        self._tell(_resolve, ready, None, None)
        try:
            while self._run_jobs(batch):
                self._step(batch)
        except Exception as error:
            _LOG.exception("engine %s failed", self._name)
            self._tell(self._fail, f"{type(error).__name__}: {error}")

    def _build(self) -> Batch:
        torch.set_num_threads(1)
        shape = kv_shape(self._model)
        decoder = choose_decoder(self._model, self._window)
        chunk = chunk_tokens(sum(parameter.numel() for parameter in self._model.parameters()), shape.device)
        self._batch = self._make_batch(decoder, shape, self._window, self._max_batch, self._kv_tokens, chunk)
        self._batch.version, self._batch.keep_kv = self._version, self._keep_kv
        return self._batch

    def _make_batch(self, *args: Any) -> Batch:
        return Batch(*args)

    def _step(self, batch: Batch) -> None:
        before, started = batch.counts["prefill_tokens"], time.perf_counter()
        batch.step()
        tokens = batch.counts["prefill_tokens"] - before
        if tokens >= _LEAST_TIMED:
            all_tokens, seconds = self._prefilled
            self._prefilled = all_tokens + tokens, seconds + time.perf_counter() - started

    def _run_jobs(self, batch: Batch) -> bool:
        """Do all queued jobs; with nothing to compute wait for some. False when asked to end."""
        while batch.idle or not self._jobs.empty():
            job = self._jobs.get()
            if job is None:
                return False
            job(batch)
        return True


def _resolve(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


def _default_kv_tokens(model: nn.Module, window: int, max_batch: int) -> int:
    affordable = int(psutil.virtual_memory().available * _MEMORY_SHARE) // kv_shape(model).token_bytes
    return max(window, min(max_batch * window, affordable))
