"""Wait for a process in a box: its end, its time, its disk, or the order to stop, whichever is first."""

import asyncio
import os
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from qwengyre.execution.sandboxes.child import Child

MOST_FILES = 200_000
DEEPEST = 100
_BLOCK = 512


class Cause(Enum):
    """Why a wait ended."""

    OVER = "over"
    TIME = "time"
    DISK = "disk"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Disk:
    """Folders that count together, and the most bytes that they may hold."""

    folders: tuple[Path, ...]
    most_bytes: int


async def supervise(child: Child, *, timeout_s: float | None, disk: Disk, stopped: asyncio.Event) -> Cause:
    """Waits for the first of the four; ends nothing itself. A full disk is looked for about twice a second."""
    stop = asyncio.ensure_future(stopped.wait())
    full = asyncio.ensure_future(_full(disk))
    try:
        await asyncio.wait({child.over, stop, full}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if full.done() and not full.cancelled():
            full.result()
            return Cause.DISK
        if stopped.is_set():
            return Cause.STOPPED
        if not child.over.done():
            return Cause.TIME
        over = await asyncio.to_thread(used, disk.folders, disk.most_bytes) >= disk.most_bytes
        return Cause.DISK if over else Cause.OVER
    finally:
        stop.cancel()
        full.cancel()


def flags(cause: Cause) -> tuple[bool, bool, bool]:
    """`timed_out`, `over_disk`, `stopped` of an Exit."""
    return cause is Cause.TIME, cause is Cause.DISK, cause is Cause.STOPPED


async def _full(disk: Disk) -> None:
    loop = asyncio.get_running_loop()
    while True:
        start = loop.time()
        if await asyncio.to_thread(used, disk.folders, disk.most_bytes) >= disk.most_bytes:
            return
        await asyncio.sleep(max(0.5, 10 * (loop.time() - start)))


def used(folders: tuple[Path, ...], most_bytes: int) -> int:
    """Bytes on disk under the folders, links not followed; `most_bytes` as soon as that, or a bound on count or depth,
    is reached. Files that vanish meanwhile count nothing."""
    total = count = 0
    todo = [(str(folder), 0) for folder in folders]
    while todo:
        folder, depth = todo.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    count += 1
                    total += entry.stat(follow_symlinks=False).st_blocks * _BLOCK
                    if total >= most_bytes or count >= MOST_FILES or depth >= DEEPEST:
                        return most_bytes
                    if entry.is_dir(follow_symlinks=False):
                        todo.append((entry.path, depth + 1))
        except OSError:
            continue
    return total
