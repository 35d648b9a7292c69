"""A place in which answers are not made in peace: an engine is killed in the middle of one, and a cell's role changes
in the middle of another."""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

from halting import HaltingEngine
from house import EXECUTION, Door, Task, engine_args

from qwengyre.engine.scripted import ScriptedEngine
from qwengyre.types import Place, Routes

KILLED, MOVED = 1, 2
"""The calls whose answers are cut."""


class Upset:
    """Cell 0 is an engine in a process of its own, which is killed (signal 9) in the middle of the answer to call 1.
    Cell 1 goes on, and leaves rollout in the middle of the answer to call 2, which goes on in cell 2 with its keys and
    values."""

    def __init__(self) -> None:
        self.killed = self.moved = False
        self.reasons: list[str] = []
        self.kept = 0
        """Tokens whose keys and values moved."""
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self, task: Task, door: Door) -> None:
        """See `Where`."""
        self._door = door
        self._leaving = HaltingEngine(**engine_args(task.source, task.window, "cell1.0"), at=MOVED)
        self._taking = ScriptedEngine(**engine_args(task.source, task.window, "cell2.0"))
        self._dying = await _process(task)
        assert self._dying.stdout is not None
        urls = [(await self._dying.stdout.readline()).decode().strip()]
        for engine in (self._leaving, self._taking):
            urls.append(await engine.start())
            await engine.open()
        self._places = {cell: Place(url, 0) for cell, url in enumerate(urls)}
        await self._route(1, 0)
        self._tasks = [asyncio.create_task(self._kill()), asyncio.create_task(self._move())]

    async def lost(self, cell: int, incarnation: int, reason: str) -> None:
        """See `Where`: what control would answer."""
        self.reasons.append(f"cell {cell}: {reason}")
        await self._route(2, 1)

    async def end(self) -> None:
        """See `Where`. Raises what went wrong."""
        for task in self._tasks:
            if not task.done():
                task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._dying.returncode is None:
            self._dying.kill()
            await self._dying.wait()
        self._leaving.go_on()
        await self._leaving.stop()
        await self._taking.stop()
        for error in results:
            if isinstance(error, Exception):
                raise error

    async def _route(self, epoch: int, cell: int) -> None:
        await self._door.route(Routes(epoch, {cell: self._places[cell]}, {EXECUTION: cell}))

    async def _kill(self) -> None:
        assert self._dying.stdout is not None
        assert await self._dying.stdout.readline() == b"half\n"
        self._dying.kill()
        await self._dying.wait()
        self.killed = True

    async def _move(self) -> None:
        """The order in which a cell leaves: closed, routes acknowledged, keys and values out and in, calls gone."""
        await self._leaving.half.wait()
        await self._leaving.close()
        await self._route(3, 2)
        await self._taking.expect_kv([EXECUTION], 60)
        exported = asyncio.create_task(self._leaving.export_kv([EXECUTION]))
        await asyncio.sleep(0)  # it is asked for before the engine goes on
        self._leaving.go_on()
        blocks = await exported
        self.kept = await self._taking.import_kv(blocks, [EXECUTION])
        await self._leaving.free_kv([block.id for block in blocks], moved=True)
        assert await self._leaving.calls() == 0
        await self._leaving.sleep()
        self.moved = True


async def _process(task: Task) -> Process:
    """The engine that will be killed."""
    program = Path(__file__).with_name("dying_engine.py")
    words = (str(program), task.source, str(task.window), str(KILLED))
    return await asyncio.create_subprocess_exec(sys.executable, *words, stdout=PIPE)
