"""Handles of plain objects in the shape of Ray's: `hand.method.remote(...)` gives a task. With faults on demand."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any


class DeadError(Exception):
    """What a caller of a dead actor sees."""


class LocalHand:
    """`target` is the object behind it. Faults: `kill`, `restart`, `before`/`after` a method, `calls` made so far.

    A hook is an async function of the call's arguments; it runs before the method begins, or when it has ended but
    its answer is not delivered yet. One that raises is what the caller sees.
    """

    def __init__(self, target: Any) -> None:
        self.target = target
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.before: dict[str, Callable[..., Awaitable[None]]] = {}
        self.after: dict[str, Callable[..., Awaitable[None]]] = {}
        self._dead: asyncio.Event = asyncio.Event()

    def kill(self) -> None:
        """Calls in flight and calls to come fail with DeadError, whatever the target still does."""
        self._dead.set()

    def restart(self, target: Any) -> None:
        """The same handle, another incarnation."""
        self.target, self._dead = target, asyncio.Event()

    def __getattr__(self, name: str) -> "Method":
        if name.startswith("__"):
            raise AttributeError(name)
        return Method(self, name)

    async def call(self, name: str, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        dead = self._dead
        self.calls.append((name, args, keywords))
        work = asyncio.create_task(self._work(name, args, keywords))
        killed = asyncio.create_task(dead.wait())
        try:
            await asyncio.wait([work, killed], return_when=asyncio.FIRST_COMPLETED)
            if dead.is_set():
                work.add_done_callback(lambda task: task.cancelled() or task.exception())  # nobody hears of it
                raise DeadError(f"the actor died before '{name}' was answered")
            return work.result()
        finally:
            killed.cancel()

    async def _work(self, name: str, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        if name in self.before:
            await self.before[name](*args)
        answer = await getattr(self.target, name)(*args, **keywords)
        if name in self.after:
            await self.after[name](*args)
        return answer


class Method:
    def __init__(self, hand: LocalHand, name: str) -> None:
        self._hand, self._name = hand, name

    def remote(self, *args: Any, **keywords: Any) -> "asyncio.Task[Any]":
        return asyncio.ensure_future(self._hand.call(self._name, args, keywords))
