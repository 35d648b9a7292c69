"""A small byte-level tokenizer with the shipped template, a scripted engine, and a gateway that uses both."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import qwengyre.model
from qwengyre.gateway.app import Gateway
from qwengyre.gateway.journal import CallLog, read_calls
from qwengyre.gateway.render import TemplateRenderer
from qwengyre.gateway.serve import Server
from qwengyre.trajectory.tree import Tree
from qwengyre.types import Place, Routes, Sampling

TEMPLATE = (Path(qwengyre.model.__file__).parent / "templates" / "chatml_tools.jinja").read_text()


def make_tokenizer(template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    """Bytes, no merges, and the ChatML tokens: ids 0-255 are bytes, 256 <|im_end|>, 257 <|endoftext|>, 258 start."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
    )
    tokenizer.chat_template = template
    return tokenizer


@dataclass
class Running:
    """A generate call inside the scripted engine."""

    body: dict[str, Any]
    aborted: asyncio.Event = field(default_factory=asyncio.Event)


Script = Callable[[Running], Awaitable[dict[str, Any] | Response]]


class ScriptedEngine:
    """Obeys the HTTP shape; what it says is up to `script`. Keeps every request body in `seen`."""

    def __init__(self, name: str = "cell0.0") -> None:
        self.name, self.version, self.closed = name, 1, False
        self.seen: list[dict[str, Any]] = []
        self.running: dict[str, Running] = {}
        self.arrived = asyncio.Condition()
        self.replies: list[Any] = []
        self.script: Script = self.reply
        self.encode: Callable[[str], list[int]] = lambda text: make_tokenizer().encode(text, add_special_tokens=False)
        routes = [
            Route("/inference/v1/generate", self._generate, methods=["POST"]),
            Route("/abort_requests", self._abort, methods=["POST"]),
        ]
        self._server = Server(Starlette(routes=routes), 0, None)
        self.url = ""

    async def start(self) -> str:
        self.url = await self._server.start()
        return self.url

    async def stop(self) -> None:
        """Cuts every connection, as a killed engine does."""
        await self._server.stop()

    async def reply(self, call: Running) -> dict[str, Any]:
        """The next of `replies` (a text), or "ok", and the end of the turn."""
        text = self.replies.pop(0) if self.replies else "ok"
        ids = self.encode(text + "<|im_end|>")
        limit = call.body["sampling_params"]["max_tokens"]
        return self.part(ids[:limit], "stop" if len(ids) <= limit else "length")

    def part(self, ids: list[int], finish: str, versions: list[tuple[int, int, int]] | None = None) -> dict[str, Any]:
        """An answer; the log-prob of the k-th token is -(id + 1) / 1024."""
        spans = [(self.version, 0, len(ids))] if versions is None else versions
        return {
            "engine": self.name,
            "choices": [
                {
                    "index": 0,
                    "token_ids": ids,
                    "finish_reason": finish,
                    "stop_reason": None,
                    "logprobs": {"content": [{"token_id": i, "logprob": -(i + 1) / 1024} for i in ids]},
                    "weight_versions": [{"version": str(v), "start": s, "end": e} for v, s, e in spans],
                }
            ],
        }

    async def until_seen(self, count: int) -> None:
        """Wait for `count` generate calls in all."""
        async with self.arrived:
            await asyncio.wait_for(self.arrived.wait_for(lambda: len(self.seen) >= count), 20)

    async def _generate(self, request: Request) -> Response:
        body = orjson.loads(await request.body())
        async with self.arrived:
            self.seen.append(body)
            self.arrived.notify_all()
        if self.closed:
            return Response(orjson.dumps({"error": {"type": "closed", "message": "leaving"}}), 409)
        call = self.running[body["request_id"]] = Running(body)
        answer = await self.script(call)
        return answer if isinstance(answer, Response) else Response(orjson.dumps(answer))

    async def _abort(self, request: Request) -> Response:
        ids = orjson.loads(await request.body())["request_ids"] or list(self.running)
        for request_id in ids:
            if request_id in self.running:
                self.running[request_id].aborted.set()
        return Response(orjson.dumps({"aborted": len(ids)}))


class Harness:
    """A gateway with its journals, one execution `0-0`, and a plain client of it."""

    def __init__(self, folder: Path, renderer: TemplateRenderer, **settings: Any) -> None:
        self.folder, self.renderer, self.epoch = folder, renderer, 0
        self.lost: list[tuple[int, int, str]] = []
        self.heard = asyncio.Event()
        defaults: dict[str, Any] = {
            "folder": folder / "calls",
            "socket": None,
            "port": 0,
            "renderer": renderer,
            "sampling": Sampling(temperature=0.8, max_tokens=200),
            "window": 2**17,
            "model": "tiny",
            "on_engine_lost": self._lost,
        }
        self.gateway = Gateway(**defaults | settings)
        self.token = "token-of-0-0"
        self.url = ""
        self.client = httpx.AsyncClient(timeout=30, trust_env=False)

    async def start(self) -> None:
        self.url = await self.gateway.start()
        await self.gateway.open("0-0", self.token)

    async def stop(self) -> None:
        await self.client.aclose()
        await self.gateway.stop()

    async def route(self, *engines: ScriptedEngine, home: int = 0, incarnation: int = 0) -> int:
        self.epoch += 1
        cells = {i: Place(e.url, incarnation) for i, e in enumerate(engines)}
        return await self.gateway.route(Routes(self.epoch, cells, {"0-0": home, "0-1": home}))

    @property
    def base(self) -> str:
        return f"{self.url}/x/{self.token}/v1"

    @property
    def journal(self) -> Path:
        return self.folder / "calls" / "0-0.calls"

    async def ask(self, messages: list[dict[str, Any]], **fields: Any) -> httpx.Response:
        body = {"model": "tiny", "messages": messages, **fields}
        return await self.client.post(f"{self.base}/chat/completions", json=body)

    async def say(self, messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
        """The assistant's message."""
        answer = await self.ask(messages, **fields)
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["message"]

    async def _lost(self, cell: int, incarnation: int, reason: str) -> None:
        self.lost.append((cell, incarnation, reason))
        self.heard.set()


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def conditioning(log: CallLog) -> dict[int, np.ndarray]:
    """Call number -> path(parent) + suffix, rebuilt from the journal's calls."""
    tree, result = Tree(), {}
    for call in log.calls:
        result[call.call] = np.concatenate([tree.path_ids(call.parent), call.suffix])
        tree.add_call(call)
    return result


async def delivered(harness: Harness, calls: set[int]) -> None:
    """The journal says so a moment after the client has its answer."""
    await until(lambda: read_calls(harness.journal).delivered == calls)


async def until(condition: Any) -> None:
    """Wait until a condition of the gateway's own state holds."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)
