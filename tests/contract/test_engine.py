"""What every engine must do, ours and yours.

To run it over your own: QWENGYRE_ENGINE=package.module:factory pytest tests/contract/test_engine.py, where
`factory(name, version)` returns an Engine that is not started, with a window of at least 512 tokens, token ids 5..200
in its vocabulary, and no stop ids of its own.
"""

import asyncio
import importlib
import os
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from typing import Any

import httpx
import pytest

from qwengyre.engine.base import Engine
from qwengyre.errors import EngineError

PROMPT = list(range(5, 45))
LONG = 400


def embedded(name: str, version: int) -> Engine:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from qwengyre.engine.embedded import EmbeddedEngine

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=263,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        intermediate_size=64,
        initializer_range=0.2,
    )
    return EmbeddedEngine(Qwen3ForCausalLM(config), name=name, eos_ids=[], window=512, version=version)


def scripted(name: str, version: int) -> Engine:
    """Forced answers; the model samples where the test's prompt is no conversation."""
    from qwengyre.engine.scripted import ScriptedEngine
    from qwengyre.model import load

    folder = load.resolve("tiny-long")
    model = load.causal_lm(folder)
    script = "qwengyre.engine.script:sampled"
    return ScriptedEngine(model, script=script, name=name, eos_ids=[], window=512, version=version)


def emulated(name: str, version: int) -> Engine:
    from qwengyre.engine.emulated import EmulatedEngine

    return EmulatedEngine(name=name, eos_ids=(), window=512, version=version, tokens_per_s=400)


IMPLEMENTATIONS: dict[str, Callable[[str, int], Engine]] = {
    "embedded": embedded,
    "scripted": scripted,
    "emulated": emulated,
}
if given := os.environ.get("QWENGYRE_ENGINE"):
    module, _, attribute = given.partition(":")
    IMPLEMENTATIONS = {given: getattr(importlib.import_module(module), attribute)}


class Served:
    """An engine and a client of its HTTP surface."""

    def __init__(self, engine: Engine, client: httpx.AsyncClient) -> None:
        self.engine = engine
        self.client = client

    async def post(self, name: str, max_tokens: int = 8, prompt: Any = PROMPT, **sampling: Any) -> httpx.Response:
        body = {
            "request_id": name,
            "token_ids": prompt,
            "sampling_params": {"max_tokens": max_tokens, "temperature": 1.0, "logprobs": 0} | sampling,
            "handle": "0-0",
        }
        return await self.client.post("/inference/v1/generate", json=body)

    async def choice(self, name: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        answer = await self.post(name, *args, **kwargs)
        assert answer.status_code == 200, answer.text
        assert answer.json()["request_id"] == name
        assert answer.json()["engine"] == self.engine.name
        [choice] = answer.json()["choices"]
        check(choice)
        return choice

    def launch(self, name: str, *args: Any, **kwargs: Any) -> asyncio.Task[dict[str, Any]]:
        return asyncio.create_task(self.choice(name, *args, **kwargs))

    async def until(self, **wanted: float) -> None:
        """Wait until counters reach these values (an engine has no event to await)."""
        while True:
            stats = await self.engine.stats()
            if all(stats[name] >= value for name, value in wanted.items()):
                return
            await asyncio.sleep(0.001)


def check(choice: dict[str, Any]) -> None:
    """Log-probs, spans and ids of one answer fit together."""
    ids, content, spans = choice["token_ids"], choice["logprobs"]["content"], choice["weight_versions"]
    assert [pair["token_id"] for pair in content] == ids
    assert all(pair["logprob"] <= 0 for pair in content)
    edges = [0, *(span["end"] for span in spans)]
    assert [span["start"] for span in spans] == edges[:-1]
    assert edges[-1] == len(ids)
    assert all(a < b for a, b in pairwise(edges))


@pytest.fixture(params=sorted(IMPLEMENTATIONS))
async def closed(request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    engine = IMPLEMENTATIONS[request.param]("cell0.1", 3)
    url = await engine.start()
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        yield Served(engine, client)
    await engine.stop()


@pytest.fixture
async def served(closed: Served) -> Served:
    await closed.engine.open()
    return closed


async def test_it_starts_closed_on_loopback(closed: Served) -> None:
    assert closed.client.base_url.host == "127.0.0.1"
    answer = await closed.post("a")
    assert (answer.status_code, answer.json()["error"]["type"]) == (409, "closed")
    health = (await closed.client.get("/health")).json()
    assert (health["engine"], health["version"], health["calls"]) == ("cell0.1", "3", 0)
    assert health["window"] >= 512


async def test_a_call_to_its_length(served: Served) -> None:
    choice = await served.choice("a", 8)
    assert (choice["finish_reason"], len(choice["token_ids"]), choice["stop_reason"]) == ("length", 8, None)
    assert choice["weight_versions"] == [{"version": "3", "start": 0, "end": 8}]


async def test_a_stop_id_is_part_of_the_output(served: Served) -> None:
    ids = (await served.choice("a", 8, temperature=0.0))["token_ids"]
    stop = ids[5]
    choice = await served.choice("b", 8, temperature=0.0, stop_token_ids=[stop])
    assert choice["token_ids"] == ids[: ids.index(stop) + 1]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)


async def test_greedy_and_seeded_calls_repeat(served: Served) -> None:
    for sampling in ({"temperature": 0.0}, {"seed": 5}):
        first, second = await asyncio.gather(*(served.choice(name, 8, **sampling) for name in "ab"))
        third = await served.choice("c", 8, **sampling)
        assert first["token_ids"] == second["token_ids"] == third["token_ids"]


async def test_calls_that_can_never_be_served(served: Served) -> None:
    window = (await served.client.get("/health")).json()["window"]
    for answer, kind in (
        (await served.post("a", window), "too_long"),
        (await served.post("b", 0), "invalid"),
        (await served.post("c", prompt=[]), "invalid"),
        (await served.post("d", prompt="text"), "invalid"),
        (await served.client.post("/inference/v1/generate", content=b"{"), "invalid"),
    ):
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, kind)
    assert len((await served.choice("e", window - len(PROMPT)))["token_ids"]) == window - len(PROMPT)


async def test_closing_refuses_new_calls_and_lets_running_ones_end(served: Served) -> None:
    running = served.launch("a", LONG)
    await served.until(decode_tokens=1)
    await served.engine.close()
    assert (await served.post("b")).status_code == 409
    assert len((await running)["token_ids"]) == LONG
    await served.engine.open()
    await served.choice("c")


async def test_abort_by_id_and_of_all(served: Served) -> None:
    one, two, three = (served.launch(name, LONG) for name in ("one", "two", "three"))
    await served.until(decode_tokens=3)
    assert await served.engine.abort(["one", "unknown"]) == 1
    partial = await one
    assert partial["finish_reason"] == "abort"
    assert 0 < len(partial["token_ids"]) < LONG
    answer = await served.client.post("/abort_requests", json={"request_ids": []})
    assert answer.json() == {"aborted": 2}
    assert {(await two)["finish_reason"], (await three)["finish_reason"]} == {"abort"}
    assert await served.engine.calls() == 0
    assert await served.engine.abort() == 0
    assert (await served.engine.stats())["aborted"] == 3


async def test_an_aborted_call_is_continued_by_its_ids(served: Served) -> None:
    whole = (await served.choice("whole", 100, temperature=0.0))["token_ids"]
    task = served.launch("part", LONG, temperature=0.0)
    await served.until(decode_tokens=105)
    await served.engine.abort()
    part = (await task)["token_ids"][:90]
    rest = await served.choice("rest", 100 - len(part), prompt=PROMPT + part, temperature=0.0)
    assert part + rest["token_ids"] == whole


async def test_a_client_that_disconnects_aborts_its_call(served: Served) -> None:
    task = asyncio.create_task(served.post("a", LONG))
    await served.until(decode_tokens=1)
    task.cancel()
    while await served.engine.calls():
        await asyncio.sleep(0.001)
    assert (await served.engine.stats())["aborted"] == 1


async def test_a_new_version_in_mid_call_makes_two_spans(served: Served) -> None:
    calls = [served.launch(str(i), LONG) for i in range(4)]
    await served.until(calls=4, decode_tokens=200)
    await served.engine.load(4)
    for choice in await asyncio.gather(*calls):
        assert [span["version"] for span in choice["weight_versions"]] == ["3", "4"]
        assert len(choice["token_ids"]) == LONG
    assert (await served.engine.stats())["aborted"] == 0
    assert (await served.client.get("/health")).json()["version"] == "4"


async def test_sleep_needs_closed_and_no_calls(served: Served) -> None:
    task = served.launch("a", LONG)
    await served.until(decode_tokens=1)
    with pytest.raises(EngineError):
        await served.engine.sleep()
    await served.engine.close()
    with pytest.raises(EngineError):
        await served.engine.sleep()
    await served.engine.abort()
    await task
    await served.engine.sleep()
    assert (await served.post("b")).status_code == 409
    with pytest.raises(EngineError):
        await served.engine.open()
    await served.engine.wake()
    await served.engine.load(5)
    await served.engine.open()
    assert (await served.choice("c"))["weight_versions"][0]["version"] == "5"


async def test_the_whole_life_twice_over(served: Served) -> None:
    engine = served.engine
    url = await engine.start()
    assert url.rstrip("/") == str(served.client.base_url).rstrip("/")
    for _ in range(2):
        for step in (engine.close, engine.close, engine.sleep, engine.sleep, engine.wake, engine.wake):
            await step()
        await engine.load(3)
        await engine.load(3)
        await engine.open()
        await engine.open()
        await served.choice("a")
    await engine.stop()
    await engine.stop()
    with pytest.raises(httpx.ConnectError):
        await served.client.get("/health")


async def test_the_life_over_http(served: Served) -> None:
    for path in ("/pause", "/sleep", "/wake_up"):
        assert (await served.client.post(path)).status_code == 200
    assert (await served.post("a")).status_code == 409
    await served.engine.load(3)
    assert (await served.client.post("/resume")).status_code == 200
    await served.choice("b")


async def test_stopping_answers_running_calls(served: Served) -> None:
    task = served.launch("a", LONG)
    await served.until(decode_tokens=1)
    await served.engine.stop()
    assert (await task)["finish_reason"] == "abort"


async def test_counters_and_capacity(served: Served) -> None:
    await served.choice("a", 8)
    stats = await served.engine.stats()
    assert {"prefill_tokens", "reused_tokens", "decode_tokens", "calls", "aborted"} <= set(stats)
    assert stats["prefill_tokens"] + stats["reused_tokens"] == len(PROMPT)
    assert (stats["decode_tokens"], stats["calls"], stats["aborted"]) == (8, 1, 0)
    assert await served.engine.capacity() >= 1
