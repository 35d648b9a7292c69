"""A gateway in a process of its own, to be killed: python gateway_process.py FOLDER PORT ENGINE_URL."""

import asyncio
import sys
from pathlib import Path

from gateway_doubles import make_tokenizer

from qwengyre.gateway.app import Gateway
from qwengyre.gateway.render import TemplateRenderer
from qwengyre.types import Place, Routes, Sampling


async def main(folder: Path, port: int, engine: str) -> None:
    gateway = Gateway(
        folder=folder,
        socket=None,
        port=port,
        renderer=TemplateRenderer(make_tokenizer()),
        sampling=Sampling(temperature=1.0, max_tokens=64),
        window=2**17,
        model="tiny",
    )
    await gateway.start()
    for member in range(3):
        await gateway.open(f"0-{member}", f"token-{member}")
    await gateway.route(Routes(1, {0: Place(engine, 0)}, {f"0-{m}": 0 for m in range(3)}))
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
