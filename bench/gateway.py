"""What the gateway adds to a model call at the end of a long session, and how many calls it carries.

    python bench/gateway.py [--json] [--tokens 700000] [--messages 600] [--peer PYTHON]

One harness talks through the real gateway to an engine that answers at once; the engine's own time is subtracted.
Beside it, for the same conversation: rendering and encoding it all anew (`naive`), and, with the Python of an
environment that has `litellm[proxy]`, LiteLLM's proxy in front of an OpenAI server that answers at once (`peer`; it
records nothing). `full` is the wire without named prefixes. All on loopback, one process each.
"""

import argparse
import asyncio
import contextlib
import gc
import http.client
import json
import multiprocessing
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import psutil

from qwengyre.engine.calls import Call, Completion, Health, Span
from qwengyre.engine.server import EngineServer, build_app
from qwengyre.gateway.app import Gateway
from qwengyre.gateway.render import TemplateRenderer
from qwengyre.gateway.wire import post
from qwengyre.model import load
from qwengyre.types import Place, Routes, Sampling

LAST = 40
"""Calls at the end that are measured."""
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"The {name} tool. " * 40,
            "parameters": {"type": "object", "properties": {"text": {"type": "string"}}},
        },
    }
    for name in ("bash", "read", "write", "edit", "grep", "glob", "task", "fetch", "plan", "ask")
]


class Instant:
    """An engine that says the next tool call at once. `kept` False: it knows no prefixes."""

    def __init__(self, folder: Path) -> None:
        tokenizer = load.tokenizer(folder)
        self._answers = [np.array(tokenizer.encode(said(n) + "<|im_end|>"), np.int32) for n in range(64)]
        self._count = 0

    async def generate(self, call: Call) -> Completion:
        self._count += 1
        ids = self._answers[self._count % 64]
        logprobs = np.full(len(ids), -1.0, np.float32)
        return Completion(call.request_id, ids, logprobs, "stop", int(ids[-1]), (Span(0, 0, len(ids)),))

    async def abort(self, request_ids: list[str] | None = None) -> int:
        return 0

    async def _nothing(self) -> None: ...

    open = close = sleep = wake = _nothing

    def health(self) -> Health:
        return Health("open", "instant", 0, 0, 2**20)


def said(n: int) -> str:
    """An answer: thinking, a text, a tool call."""
    command = " && ".join(f"python -m tests.case_{n}_{i} --verbose | tail -n {i}" for i in range(6))
    call = json.dumps({"name": "bash", "arguments": {"text": command}})
    return f"I look at case {n} next, then decide.\n<tool_call>\n{call}\n</tool_call>"


def words(rng: np.random.Generator, count: int) -> str:
    """Text that tokenizes like a tool's output."""
    text = "def return self import the file path value error test assert list of 0 1 2 : ( ) line in None"
    known = text.split(" ")
    return " ".join(known[i] for i in rng.integers(0, len(known), count))


class Timed:
    """ASGI: keeps the seconds that each request spent inside, the body's arrival excluded."""

    def __init__(self, app: Any, kept: bool) -> None:
        self._app, self._kept, self.times = app, kept, list[float]()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        started = time.perf_counter()

        async def got() -> Any:
            nonlocal started
            message = await receive()
            started = time.perf_counter() if message["type"] == "http.request" else started
            return message

        async def sent(message: Any) -> None:
            if message["type"] == "http.response.body":
                self.times.append(time.perf_counter() - started)
                if not self._kept:
                    message = {**message, "body": message["body"].replace(b'"kept":true', b'"nope":true')}
            await send(message)

        await self._app(scope, got, sent)


def engine(pipe: Connection, folder: Path, kept: bool) -> None:
    """A process: the engine. Sends its URL; answers each message with the times since the last."""

    async def main() -> None:
        timed = Timed(build_app(Instant(folder), "instant"), kept)
        server = EngineServer(timed)  # pyright: ignore[reportArgumentType]
        pipe.send(await server.start())
        while await asyncio.to_thread(pipe.recv):
            times, timed.times = timed.times, []
            pipe.send(times)
        await server.stop()

    asyncio.run(main())


def gateway(pipe: Connection, folder: Path, calls: Path, url: str) -> None:
    """A process: the gateway. Sends its URL; each message is an execution to open."""

    async def main() -> None:
        gc.collect()
        gc.freeze()  # as in a run's gateway process
        served = Gateway(
            folder=calls,
            socket=None,
            port=0,
            renderer=TemplateRenderer(load.tokenizer(folder)),
            sampling=Sampling(1.0, 1024),
            window=2**20,
            model="bench",
        )
        pipe.send(await served.start())
        homes: dict[str, int] = {}
        while name := await asyncio.to_thread(pipe.recv):
            homes[name] = 0
            await served.open(name, f"token-{name}")
            await served.route(Routes(len(homes), {0: Place(url, 0)}, dict(homes)))
            pipe.send(name)
        await served.stop()

    asyncio.run(main())


class Client:
    """A harness with one connection. http.client: others take two milliseconds more to send 3 MB."""

    def __init__(self, url: str) -> None:
        where = urlsplit(url)
        self._connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=60)

    def post(self, path: str, body: bytes, **headers: str) -> Any:
        """The JSON of the answer."""
        self._connection.request("POST", path, body, {"content-type": "application/json", **headers})
        answer = self._connection.getresponse()
        text = answer.read()
        assert answer.status == 200, text
        return json.loads(text)

    def close(self) -> None:
        self._connection.close()


class Process:
    """A child with a pipe."""

    def __init__(self, target: Any, *args: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=target, args=(theirs, *args), daemon=True)
        self._process.start()
        self.first = self._pipe.recv()
        self.usage = psutil.Process(self._process.pid)

    def cpu(self) -> float:
        """Seconds of all its threads, to the nanosecond where Linux tells."""
        try:
            tasks = Path(f"/proc/{self.usage.pid}/task").glob("*/schedstat")
            return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9
        except OSError:
            return sum(self.usage.cpu_times()[:2])

    def ask(self, message: Any) -> Any:
        self._pipe.send(message)
        return self._pipe.recv()

    def stop(self) -> None:
        self._pipe.send(None)
        self._process.join(10)


def long_session(tokens: int, messages: int, folder: Path, *, kept: bool, scratch: Path) -> dict[str, Any]:
    """One execution grown to its full length; the last calls are timed."""
    machine = Process(engine, folder, kept)
    door = Process(gateway, folder, scratch / f"calls-{kept}", machine.first)
    door.ask("0-0")
    rng = np.random.default_rng(0)
    tokenizer = load.tokenizer(folder)
    sample = words(rng, 1000)
    rate = len(tokenizer.encode(sample)) / 1000
    per_turn = tokens // (messages // 2)
    talk: list[Any] = [{"role": "system", "content": words(rng, 4000)}, {"role": "user", "content": words(rng, 200)}]
    before, rows, length, memory = door.usage.memory_info().rss, [], 0, 0
    with contextlib.closing(Client(door.first)) as client:
        while len(talk) < messages + 2:
            body = json.dumps({"model": "m", "messages": talk, "tools": TOOLS}, separators=(",", ":")).encode()
            machine.ask(True)
            cpu, started = door.cpu(), time.perf_counter()
            got = client.post("/x/token-0-0/v1/chat/completions", body)
            took = time.perf_counter() - started
            cpu = door.cpu() - cpu
            rows.append((took - sum(machine.ask(True)), cpu))
            length = got["usage"]["total_tokens"]
            message = got["choices"][0]["message"]
            made = max(1, int((per_turn - got["usage"]["completion_tokens"]) / rate))
            result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": words(rng, made)}
            talk += [message, result]
            memory = max(memory, door.usage.memory_info().rss)
    journal = (scratch / f"calls-{kept}" / "0-0.calls").stat().st_size
    door.stop()
    machine.stop()
    last = [took * 1000 for took, _ in rows[-LAST:]]
    return {
        "context_tokens": length,
        "body_mb": len(body) / 1e6,
        "overhead_ms_p50": statistics.median(last),
        "overhead_ms_p99": float(np.quantile(last, 0.99)),
        "cpu_ms_p50": statistics.median([cpu * 1000 for _, cpu in rows[-LAST:]]),
        "rss_mb": (memory - before) / 1e6,
        "journal_bytes_per_token": journal / length,
        "talk": talk[:-2],
    }


def naive(talk: list[Any], folder: Path) -> float:
    """Milliseconds to render and encode the whole conversation, as a gateway without memory does at every call."""
    tokenizer = load.tokenizer(folder)
    talk = [
        {**m, "tool_calls": [{**c, "function": {**c["function"], "arguments": json.loads(c["function"]["arguments"])}}]}
        if (c := (m.get("tool_calls") or [None])[0])
        else m
        for m in talk
    ]
    times: list[float] = []
    for _ in range(3):
        started = time.perf_counter()
        text = tokenizer.apply_chat_template(talk, tools=TOOLS, tokenize=False, add_generation_prompt=True)
        tokenizer.encode(str(text), add_special_tokens=False)
        times.append((time.perf_counter() - started) * 1000)
    return statistics.median(times)


def many(folder: Path, scratch: Path, streams: int = 256, turns: int = 4) -> dict[str, float]:
    """`streams` executions at once, streaming: calls a second, and errors."""
    machine = Process(engine, folder, True)
    door = Process(gateway, folder, scratch / "many", machine.first)
    for n in range(streams):
        door.ask(f"{n}-0")

    async def one(n: int) -> int:
        talk: list[Any] = [{"role": "user", "content": f"{n} go"}]
        errors = 0
        for turn in range(turns):
            body = json.dumps({"model": "m", "messages": talk, "tools": TOOLS, "stream": True}).encode()
            answer = await post(f"{door.first}/x/token-{n}-0/v1/chat/completions", body)
            errors += answer.status != 200 or not answer.text.endswith("[DONE]\n\n")
            talk += [{"role": "assistant", "content": f"{turn}"}, {"role": "user", "content": f"{n} {turn} more"}]
        return errors

    async def run() -> tuple[int, float]:
        started = time.perf_counter()
        errors = await asyncio.gather(*map(one, range(streams)))
        return sum(errors), time.perf_counter() - started

    errors, seconds = asyncio.run(run())
    door.stop()
    machine.stop()
    return {"calls_per_s": streams * turns / seconds, "stream_errors": errors}


def echo_server(pipe: Connection) -> None:
    """A process: an OpenAI server that answers at once, for the peer."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    message = {"role": "assistant", "content": "ok"}
    body = {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }

    async def answer(request: Request) -> Response:
        await request.body()
        return Response(json.dumps(body), media_type="application/json")

    async def main() -> None:
        server = EngineServer(Starlette(routes=[Route("/v1/chat/completions", answer, methods=["POST"])]))
        pipe.send(await server.start())
        await asyncio.to_thread(pipe.recv)
        await server.stop()

    asyncio.run(main())


def peer(python: str, talk: list[Any], scratch: Path) -> float:
    """Milliseconds of LiteLLM's proxy for the same body."""
    origin = Process(echo_server)
    settings = {"model": "openai/m", "api_base": f"{origin.first}/v1", "api_key": "k"}
    config, log = scratch / "litellm.json", scratch / "litellm.log"
    config.write_text(json.dumps({"model_list": [{"model_name": "m", "litellm_params": settings}]}))
    url = f"http://127.0.0.1:{40000 + os.getpid() % 10000}"
    command = [str(Path(python).parent / "litellm"), "--config", str(config), "--host", "127.0.0.1"]
    env = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False", "NO_PROXY": "*"}
    env["LITELLM_MASTER_KEY"] = key = f"sk-{secrets.token_hex(16)}"
    with log.open("wb") as out:
        proxy = subprocess.Popen([*command, "--port", url.rpartition(":")[2]], env=env, stdout=out, stderr=out)
    body = json.dumps({"model": "m", "messages": talk, "tools": TOOLS}, separators=(",", ":")).encode()
    times: list[float] = []
    try:
        _until_up(proxy, f"{url}/health/liveliness", log)
        with contextlib.closing(Client(url)) as client:
            for _ in range(LAST):
                started = time.perf_counter()
                client.post("/v1/chat/completions", body, authorization=f"Bearer {key}")
                times.append((time.perf_counter() - started) * 1000)
    finally:
        proxy.terminate()
        origin.stop()
    return statistics.median(times)


def _until_up(proxy: subprocess.Popen[bytes], url: str, log: Path) -> None:
    for _ in range(240):
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(url, trust_env=False).status_code == 200:
                return
        if proxy.poll() is not None:
            break
        time.sleep(0.5)
    raise RuntimeError(f"the peer does not start: {log.read_text()[-2000:]}")


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tokens", type=int, default=700_000)
    parser.add_argument("--messages", type=int, default=600)
    parser.add_argument("--peer", default="", help="Python of an environment with litellm[proxy]")
    asked = parser.parse_args()
    folder = load.resolve("tiny-long")
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        result = long_session(asked.tokens, asked.messages, folder, kept=True, scratch=scratch)
        talk = result.pop("talk")
        full = long_session(asked.tokens, asked.messages, folder, kept=False, scratch=scratch)
        result |= {f"full_{key}": full[key] for key in ("overhead_ms_p50", "overhead_ms_p99", "cpu_ms_p50")}
        result["naive_ms_p50"] = naive(talk, folder)
        result["peer_ms_p50"] = peer(asked.peer, talk, scratch) if asked.peer else None
        result |= many(folder, scratch)
    if asked.json:
        print(json.dumps(result))
        return
    for key, value in result.items():
        print(f"{key:26} {'-' if value is None else value if isinstance(value, int) else f'{value:.2f}'}")


if __name__ == "__main__":
    sys.exit(main())
