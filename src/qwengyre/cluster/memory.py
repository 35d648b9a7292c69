"""Memory that a process freed goes back to the machine: cells share one, and the next role of another needs it."""

import ctypes
import functools
from collections.abc import Callable


def give_back() -> None:
    """Return what the allocator keeps of freed memory. Milliseconds; nothing where the C library has no such call."""
    _trim()(0)


@functools.cache
def _trim() -> Callable[[int], int]:
    """glibc's own; another C library returns memory by itself, or never."""
    return getattr(ctypes.CDLL(None), "malloc_trim", lambda _: 0)
