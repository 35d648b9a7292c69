"""Continuous batching: which tokens of which calls run in the next forward pass. Synchronous, one thread.

A call is waiting or active. An active call has `computed` tokens with keys and values and `size` tokens known; a pass
takes one token of every call that decodes, and up to a chunk of tokens of calls that still prefill, so that a long
prompt never stalls the others for more than a chunk. A call whose last known token is computed gets its next token.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter

import numpy as np
import torch
from torch import Tensor

from qwengyre.engine.attention import DecodeRows, Plan, PrefillSpan, decode_mask, prefill_mask
from qwengyre.engine.calls import Call, Completion
from qwengyre.engine.forward import Decoder
from qwengyre.engine.kv import LEAST_SHARED, KVShape, PrefixCache, Resting, Slab, common_prefix, row_class
from qwengyre.engine.running import Running, Source
from qwengyre.engine.sampling import sample
from qwengyre.errors import EngineError


class Batch:
    """All calls of an engine. `counts` only grow: prefill_tokens, reused_tokens, decode_tokens, calls, aborted,
    aborted_tokens (partial output that those kept), aborted_kv (tokens whose keys and values they had),
    moved_tokens_in, moved_tokens_out. `keep_kv`: whether keys and values survive `reload`.
    """

    def __init__(
        self, decoder: Decoder, shape: KVShape, window: int, max_batch: int, kv_tokens: int, chunk: int
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.version = 0
        self.keep_kv = False
        self._window = window
        self._decoder = decoder
        self._shape = shape
        self._max_batch = max_batch
        self._kv_tokens = kv_tokens
        self._chunk = chunk
        self._waiting: list[Running] = []
        self._active: list[Running] = []
        self._cache = PrefixCache()
        self._slabs: dict[int, Slab] = {}
        self._pinned: dict[int, Resting] = {}
        self._pins = 0
        self._expected: set[str] = set()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._active)

    @property
    def idle(self) -> bool:
        """Whether nothing can be computed before something arrives: a call, or the keys and values of one."""
        return not self._active and all(running.call.handle in self._expected for running in self._waiting)

    @property
    def kv_used(self) -> int:
        """KV tokens reserved now, by calls, resting prefixes and pinned sequences."""
        calls = sum(running.reserved for running in self._active)
        return self._cache.tokens + self.kv_pinned + calls

    @property
    def kv_pinned(self) -> int:
        """KV tokens of exported sequences that are not freed yet."""
        return sum(len(resting.ids) for resting in self._pinned.values())

    def submit(
        self, call: Call, rng: random.Random, stops: frozenset[int], answer: Callable[[Completion], None]
    ) -> None:
        """Queue a call; `answer` is called exactly once."""
        prompt = len(call.token_ids)
        ids = np.empty(prompt + call.max_tokens, np.int32)
        ids[:prompt] = call.token_ids
        self.counts["calls"] += 1
        self._waiting.append(Running(call, answer, stops, rng, ids, prompt))

    @torch.inference_mode()
    def abort(self, request_ids: Sequence[str] | None) -> int:
        """End calls (None: all) with what they have; returns how many."""
        wanted = None if request_ids is None else set(request_ids)
        ended = [r for r in (*self._active, *self._waiting) if wanted is None or r.call.request_id in wanted]
        for running in ended:
            self.counts["aborted"] += 1
            self.counts["aborted_tokens"] += running.output
            self.counts["aborted_kv"] += running.computed
            self._finish(running, "abort", None)
        return len(ended)

    @torch.inference_mode()
    def reload(self, version: int) -> None:
        """The weights have changed: forget all keys and values; live calls prefill prompt and output again. With
        `keep_kv` go on with those that there are."""
        self.version = version
        if self.keep_kv:
            return
        self._cache.clear()
        for running in self._active:
            self._release(running)
        self._waiting = self._active + self._waiting
        self._active = []

    def free(self) -> None:
        """Give back all KV memory, pinned sequences included. Only without calls."""
        assert not len(self)
        self._cache.clear()
        self._slabs.clear()
        self._pinned.clear()

    # Hand-over: export at the source, arrival at the destination

    @torch.inference_mode()
    def export(self, handles: frozenset[str]) -> dict[int, Resting]:
        """Between two passes: end the calls of `handles` with their partial output, and take what these executions
        have, live or resting, out of the cache. Pinned, under the returned keys, until freed."""
        self.abort([r.call.request_id for r in (*self._active, *self._waiting) if r.call.handle in handles])
        taken = self._cache.take(handles)
        keys = range(self._pins, self._pins + len(taken))
        self._pins = keys.stop
        pinned = dict(zip(keys, taken, strict=True))
        self._pinned |= pinned
        return pinned

    def unpin(self, keys: Sequence[int], moved: bool) -> None:
        """Give back exported sequences; `moved`: another engine has them. Unknown keys were given back before."""
        for key in keys:
            resting = self._pinned.pop(key, None)
            self.counts["moved_tokens_out"] += len(resting.ids) if resting is not None and moved else 0

    def expect(self, handles: frozenset[str]) -> None:
        """Calls of these executions wait: their keys and values are coming."""
        self._expected |= handles

    def arrived(self, handles: frozenset[str]) -> None:
        """What was expected for these executions is here, or will not come."""
        self._expected -= handles

    def adopt(self, resting: Resting) -> bool:
        """Keep another engine's sequence as a resting prefix. False when calls hold too much memory."""
        if self._cache.holder(resting.ids) is None:
            if not self._reserve(len(resting.ids)):
                return False
            self._cache.put(resting)
        self.counts["moved_tokens_in"] += len(resting.ids)
        return True

    @torch.inference_mode()
    def step(self) -> None:
        """One forward pass; every call whose tokens are all computed gets its next token."""
        self._admit()
        self._make_room()
        rows, decoding = self._plan_rows()
        spans, prefilling = self._plan_spans(len(decoding))
        if not decoding and not prefilling:
            return
        chosen = decoding + [running for running, _ in prefilling]
        takes = [1] * len(decoding) + [count for _, count in prefilling]
        logits, finished = self._forward(Plan(rows, spans), chosen, takes)
        for running, take in zip(chosen, takes, strict=True):
            self.counts["prefill_tokens"] += max(0, min(running.computed + take, running.known) - running.computed)
            running.computed += take
        if finished:
            self._sample(logits, finished)
        for running, _ in prefilling:
            if running.strip is not None and running.remaining == 1:
                self._settle(running)

    def _forward(self, plan: Plan, chosen: list[Running], takes: list[int]) -> tuple[Tensor, list[Running]]:
        pieces = [r.ids[r.computed : r.computed + n] for r, n in zip(chosen, takes, strict=True)]
        starts = np.fromiter((r.computed for r in chosen), np.int64, len(chosen))
        counts = np.asarray(takes, np.int64)
        ends = counts.cumsum()
        positions = np.arange(ends[-1]) + np.repeat(starts - (ends - counts), counts)
        done = [i for i, r in enumerate(chosen) if r.computed + takes[i] == r.size]
        device = self._shape.device
        ids = torch.from_numpy(np.concatenate(pieces).astype(np.int64)).to(device)
        wanted = torch.from_numpy(ends[done] - 1).to(device)
        logits = self._decoder(ids, torch.from_numpy(positions).to(device), plan, wanted)
        return logits, [chosen[i] for i in done]

    def _sample(self, logits: Tensor, finished: list[Running]) -> None:
        device = logits.device
        temperatures = torch.tensor([running.call.temperature for running in finished], device=device)
        uniforms = torch.tensor([running.rng.random() for running in finished], device=device)
        ids, logprobs = sample(logits, temperatures, uniforms)
        if not bool(logprobs.isfinite().all()):
            raise EngineError(f"the model's output under version {self.version} is not finite: its weights are broken")
        self.counts["decode_tokens"] += len(finished)
        for running, token, logprob in zip(finished, ids.tolist(), logprobs.tolist(), strict=True):
            self._append(running, token, logprob)

    def _append(self, running: Running, token: int, logprob: float) -> None:
        at, under = running.output, (self.version, running.kv_version)
        running.ids[running.size] = token
        running.size += 1
        running.logprobs.append(logprob)
        if running.call.progress is not None:
            running.call.progress(token)
        if not running.versions or running.versions[-1][:2] != under:
            running.versions.append((*under, at))
        if token in running.stops:
            self._finish(running, "stop", token)
        elif at + 1 == running.call.max_tokens:
            self._finish(running, "length", None)

    def _finish(self, running: Running, reason: str, stop: int | None) -> None:
        if running in self._waiting:
            self._waiting.remove(running)
        else:
            self._active.remove(running)
            self._keep(running)
            self._release(running)
        prompt = len(running.call.token_ids)
        running.answer(
            Completion(
                request_id=running.call.request_id,
                token_ids=running.ids[prompt : running.size].copy(),
                logprobs=np.asarray(running.logprobs, np.float32),
                finish_reason=reason,
                stop_reason=stop,
                spans=running.spans,
            )
        )

    # Places

    def _admit(self) -> None:
        for running in list(self._waiting):
            if len(self._active) >= self._max_batch:
                return
            if running.call.handle in self._expected:
                continue
            source = self._best_source(running)
            if self._worth_waiting(running, source.length):
                continue
            if not self._place(running, source):
                return
            self._waiting.remove(running)
            self._active.append(running)

    def _best_source(self, running: Running) -> Source:
        """Longest computed prefix of a call, short of its last token (whose logits are needed), and where it is."""
        wanted = running.ids[: running.size - 1]
        if len(wanted) < LEAST_SHARED:
            return Source()
        length, resting = self._cache.find(wanted)
        best = Source() if resting is None else Source(length, resting.strip, resting.version)
        for other in self._active:
            if other.key == running.key and other.computed > best.length:
                length = common_prefix(other.ids[: other.computed], wanted)
                if length >= max(LEAST_SHARED, best.length + 1):
                    best = Source(length, other.view(length), other.kv_version)
        return best

    def _worth_waiting(self, running: Running, shared: int) -> bool:
        """Whether a call that is prefilling now will soon have a much longer common prefix."""
        wanted = running.ids[: running.size - 1]
        return any(
            other.key == running.key
            and other.computed < other.known
            and common_prefix(other.ids[: other.known], wanted) >= shared + LEAST_SHARED
            for other in self._active
        )

    def _place(self, running: Running, source: Source) -> bool:
        shared, data = source.length, source.data
        if not self._reserve(row_class(running.size + 1, self._window)):
            return False
        running.known, running.computed = running.size, shared
        running.kv_version = min(source.version, self.version) if shared else self.version
        self.counts["reused_tokens"] += shared
        if running.remaining == 1:
            self._enter_slab(running, data[:, :, :shared] if data is not None else self._shape.strip(0))
            return True
        running.strip = self._shape.strip(running.size)
        if data is not None:
            running.strip[:, :, :shared].copy_(data[:, :, :shared])
        return True

    def _reserve(self, tokens: int) -> bool:
        """Evict resting prefixes until `tokens` more fit. False when calls hold too much."""
        while self.kv_used + tokens > self._kv_tokens:
            if not self._cache.evict():
                return False
        return True

    def _settle(self, running: Running) -> None:
        """A call that has prefilled moves from its strip to a row, where it decodes; without room it waits."""
        strip, running.strip = running.strip, None
        assert strip is not None
        if self._reserve(row_class(running.size + 1, self._window)):
            self._enter_slab(running, strip[:, :, : running.computed])
        else:
            self._back_to_queue(running)

    def _make_room(self) -> None:
        """Rows that are full move to the next class; without room the youngest calls go back to the queue."""
        for running in list(self._active):
            if running.slab is None or running.computed < running.slab.tokens:
                continue
            larger = row_class(running.computed + 1, self._window)
            while running in self._active and not self._reserve(larger - running.reserved):
                self._back_to_queue(self._active[-1])
            if running in self._active:
                contents = running.view(running.computed).clone()
                self._leave_slab(running)
                self._enter_slab(running, contents)

    def _back_to_queue(self, running: Running) -> None:
        self._active.remove(running)
        self._release(running)
        self._waiting.insert(0, running)

    def _enter_slab(self, running: Running, contents: Tensor) -> None:
        tokens = row_class(running.size + 1, self._window)
        slab = self._slabs.get(tokens) or self._slabs.setdefault(tokens, Slab(self._shape, tokens))
        running.slab, running.row = slab, len(slab.owners)
        slab.add(running, contents)

    def _leave_slab(self, running: Running) -> None:
        slab = running.slab
        assert slab is not None
        last = slab.owners[-1]
        assert isinstance(last, Running)
        mover = slab.remove(running.row, last.computed)
        if mover is not None:
            last.row = running.row
        if not slab.owners:
            del self._slabs[slab.tokens]
        running.slab = None

    def _release(self, running: Running) -> None:
        if running.slab is not None:
            self._leave_slab(running)
        running.strip, running.computed, running.known = None, 0, 0

    def _keep(self, running: Running) -> None:
        """Leave the keys and values of a finished call to later ones."""
        ids, handle = running.ids[: running.computed].copy(), running.call.handle
        if len(ids) < LEAST_SHARED:
            return
        resting = self._cache.holder(ids)
        if resting is None:
            resting = Resting(ids, running.view(running.computed).clone(), running.kv_version)
            self._cache.put(resting)
        if handle:
            resting.handles[handle] = max(len(ids), resting.handles.get(handle, 0))

    # Plans

    def _plan_rows(self) -> tuple[tuple[DecodeRows, ...], list[Running]]:
        rows: list[DecodeRows] = []
        decoding: list[Running] = []
        for slab in self._slabs.values():
            owners = [owner for owner in slab.owners if isinstance(owner, Running)]
            positions = np.fromiter((owner.computed for owner in owners), np.int64, len(owners))
            longest = int(positions.max()) + 1
            ragged = longest != int(positions.min()) + 1
            slots = torch.from_numpy(positions + np.arange(len(owners)) * slab.tokens).to(self._shape.device)
            lengths = torch.from_numpy(positions + 1).to(self._shape.device)
            mask = decode_mask(lengths, longest) if ragged else None
            rows.append(DecodeRows(slab.views, len(decoding), len(owners), longest, slots, mask))
            decoding += owners
        return tuple(rows), decoding

    def _plan_spans(self, start: int) -> tuple[tuple[PrefillSpan, ...], list[tuple[Running, int]]]:
        spans: list[PrefillSpan] = []
        taken: list[tuple[Running, int]] = []
        for running, count in self._prefill_shares():
            assert running.strip is not None
            mask = prefill_mask(count, running.computed, self._shape.groups, self._shape.device)
            spans.append(PrefillSpan(running.strip, start, count, running.computed, mask))
            taken.append((running, count))
            start += count
        return tuple(spans), taken

    def _prefill_shares(self) -> Iterator[tuple[Running, int]]:
        """Who prefills how much: half a chunk is the oldest call's, the rest goes to the shortest first."""
        queue = [running for running in self._active if running.strip is not None]
        if not queue:
            return
        oldest, left = queue[0], self._chunk
        granted = dict.fromkeys(queue, 0)
        shortest_first = sorted(queue, key=attrgetter("remaining"))
        for running, most in [(oldest, self._chunk // 2), *((r, self._chunk) for r in shortest_first)]:
            share = min(left, most, running.remaining - granted[running])
            granted[running] += share
            left -= share
        yield from ((running, share) for running, share in granted.items() if share)
