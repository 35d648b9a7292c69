"""A scripted engine in a process of its own that stands still in the middle of one answer, to be killed there.

    python dying_engine.py SCRIPT WINDOW CALL

Prints its URL, then `half` when half of the answer to call number CALL is sampled.
"""

import asyncio
import sys

from halting import HaltingEngine
from house import engine_args


async def main(script: str, window: int, call: int) -> None:
    """Serve until killed."""
    engine = HaltingEngine(**engine_args(script, window, "cell0.0"), at=call)
    url = await engine.start()
    await engine.open()
    print(url, flush=True)
    await engine.half.wait()
    print("half", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
