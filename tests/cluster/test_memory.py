"""Freed memory goes back to the machine."""

import subprocess
import sys

import pytest

PROGRAM = """
import psutil
from qwengyre.cluster.memory import give_back

blocks = [bytes(100_000) for _ in range(2_000)]  # below the size that the allocator maps and unmaps by itself
last = bytes(100_000)  # keeps the end of the heap in use
blocks = [b'x' * 100_000 for _ in blocks]
del blocks
before = psutil.Process().memory_info().rss
give_back()
print(before - psutil.Process().memory_info().rss)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="an allocator of its own")
def test_freed_memory_goes_back() -> None:
    returned = int(subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True).stdout)
    assert returned > 50_000_000
