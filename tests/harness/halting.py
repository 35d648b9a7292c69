"""A scripted engine that stands still in the middle of one answer until it is told to go on."""

import asyncio
import threading
from typing import Any

from qwengyre.engine.batch import Batch
from qwengyre.engine.running import Running
from qwengyre.engine.scripted import ForcedBatch, ForcedCall, ScriptedEngine


class HaltingEngine(ScriptedEngine):
    """At half of the answer to call number `at` of its execution, `half` is set, and the torch thread waits for
    `go_on`; what was asked of the engine meanwhile is done next, before another token."""

    def __init__(self, *args: Any, at: int, **more: Any) -> None:
        super().__init__(*args, **more)
        self.half = asyncio.Event()
        self._at = at
        self._told = threading.Event()

    def go_on(self) -> None:
        """End the wait."""
        self._told.set()

    def _make_batch(self, *args: Any) -> Batch:
        batch = _HaltingBatch(*args)
        batch.halt = self._halt
        return batch

    def _halt(self, running: Running) -> None:
        call = running.call
        if not isinstance(call, ForcedCall) or int(call.request_id.split("-")[-2]) != self._at:
            return
        if running.output == len(call.forced) // 2:
            self._tell(self.half.set)
            self._told.wait()


class _HaltingBatch(ForcedBatch):
    halt: Any

    def _append(self, running: Running, token: int, logprob: float) -> None:
        super()._append(running, token, logprob)
        self.halt(running)
