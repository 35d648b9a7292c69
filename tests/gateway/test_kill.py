"""`kill -9` of a gateway at random moments: what a harness was told is in the journal, and the next gateway goes on."""

import asyncio
import os
import random
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import httpx
from gateway_doubles import ScriptedEngine, conditioning, user

from qwengyre.gateway.journal import read_calls, rebuild

ROUNDS = 3


async def start(folder: Path, port: int, engine: str) -> asyncio.subprocess.Process:
    command = [sys.executable, str(Path(__file__).parent / "gateway_process.py"), str(folder), str(port), engine]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), 60)
    assert line == b"ready\n"
    return process


class Talker:
    """A harness that retries whatever was cut, and remembers each answer that it was given whole."""

    def __init__(self, url: str, member: int) -> None:
        self.url, self.answers = f"{url}/x/token-{member}/v1/chat/completions", list[str]()
        self.talk: list[dict[str, Any]] = [user(f"I am {member}")]
        self.client = httpx.AsyncClient(timeout=20, trust_env=False)

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                answer = await self.client.post(self.url, json={"messages": self.talk})
            except httpx.HTTPError:
                await asyncio.sleep(0.05)
                continue
            assert answer.status_code == 200, answer.text
            message = answer.json()["choices"][0]["message"]
            self.answers.append(message["content"])
            self.talk += [message, user("next")]
        await self.client.aclose()


async def test_no_acknowledged_call_is_lost(tmp_path: Path, engine: ScriptedEngine):
    made = 0

    async def numbered(call: Any) -> dict[str, Any]:
        nonlocal made
        made += 1
        return engine.part(engine.encode(f"answer {made}<|im_end|>"), "stop")

    engine.script = numbered
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    rng, stop = random.Random(7), asyncio.Event()
    process = await start(tmp_path, port, engine.url)
    talkers = [Talker(f"http://127.0.0.1:{port}", m) for m in range(3)]
    running = [asyncio.create_task(t.run(stop)) for t in talkers]
    for _ in range(ROUNDS):
        await engine.until_seen(len(engine.seen) + rng.randint(5, 15))
        await asyncio.sleep(rng.random() * 0.02)
        process.send_signal(signal.SIGKILL)
        await process.wait()
        process = await start(tmp_path, port, engine.url)
    await engine.until_seen(len(engine.seen) + 5)
    stop.set()
    await asyncio.gather(*running)
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    sent = {tuple(call["token_ids"]) for call in engine.seen}
    for member, talker in enumerate(talkers):
        path = tmp_path / f"0-{member}.calls"
        log = read_calls(path)
        assert [t for t in talker.answers if t not in {c.response["text"] for c in log.calls}] == []
        assert len({c.call for c in log.calls}) == len(log.calls)
        assert {tuple(ids.tolist()) for ids in conditioning(log).values()} <= sent
        told = [c.response["text"] for c in log.calls if c.call in log.delivered]
        assert set(told) <= set(talker.answers)
        tree = rebuild(path)
        main = max(tree.leaves(), key=lambda leaf: tree.lengths[leaf])
        assert sum(tree.calls[r] in log.delivered for r in tree.path(main)) > 0
