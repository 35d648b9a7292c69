"""Streams that are told what is sampled at once (`serve`): the same answer as a held one, sooner."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import orjson
import pytest
from gateway_doubles import Harness, Running, ScriptedEngine
from starlette.responses import StreamingResponse
from test_calls_everywhere import PROTOCOLS, text_of

from qwengyre.gateway.journal import read_calls

SAID = '<think>\nhm é\n</think>\n\nI look. \n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call><|im_end|>'
TOOLS = {
    "chat": [{"type": "function", "function": {"name": "f"}}],
    "responses": [{"type": "function", "name": "f"}],
    "anthropic": [{"name": "f", "input_schema": {}}],
}


@pytest.fixture
async def live(make_harness: Callable[..., Harness], engine: ScriptedEngine) -> AsyncIterator[Harness]:
    harness = make_harness(live=True)
    await harness.start()
    await harness.route(engine)
    yield harness
    await harness.stop()


def streams(engine: ScriptedEngine, text: str, first: int, release: asyncio.Event) -> Any:
    """A script: the ids of the first characters at once, the rest and the whole answer when released."""

    async def script(call: Running) -> StreamingResponse:
        assert call.body["stream"] is True
        ids = engine.encode(text)

        async def lines() -> AsyncIterator[bytes]:
            yield orjson.dumps({"token_ids": ids[:first]}) + b"\n"
            await release.wait()
            for token in ids[first:]:
                yield orjson.dumps({"token_ids": [token]}) + b"\n"
            yield orjson.dumps(engine.part(ids, "stop")) + b"\n"

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    return script


@pytest.mark.parametrize("protocol", ["anthropic", "chat", "responses"])
async def test_text_comes_while_the_engine_still_samples(live: Harness, engine: ScriptedEngine, protocol: str):
    release = asyncio.Event()
    engine.script = streams(engine, SAID, SAID.index("look") + 5, release)
    path, body = PROTOCOLS[protocol]
    asked = {"model": "m", **body, "stream": True, "tools": TOOLS[protocol], "max_tokens": 200}
    seen = ""
    async with live.client.stream("POST", f"{live.base}/{path}", json=asked) as answer:
        async for chunk in answer.aiter_text():
            seen += chunk
            if "look" in seen and not release.is_set():
                assert "hm" in seen
                assert "tool_call" not in seen.replace("tool_calls", "")
                release.set()
    whole = text_of(protocol, httpx.Response(200, text=seen, headers={"content-type": "text/event-stream"}))
    assert whole == "I look."
    assert "tool_call>" not in seen
    assert json.dumps({"a": 1})[1:-1] in seen.replace("\\", "")
    events = [orjson.loads(line[6:]) for line in seen.splitlines() if line.startswith("data: {")]
    if protocol == "responses":
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        kinds = ["response.output_item.added", "response.output_item.done"]
        order = [(e["type"] == kinds[1], e["output_index"]) for e in events if e["type"] in kinds]
        assert order == [(False, 0), (True, 0), (False, 1), (True, 1), (False, 2), (True, 2)]
        done = [e["item"] for e in events if e["type"] == kinds[1]]
        assert done == events[-1]["response"]["output"]
    if protocol == "anthropic":
        starts = [(e["index"], e["content_block"]["type"]) for e in events if e["type"] == "content_block_start"]
        assert starts == [(0, "thinking"), (1, "text"), (2, "tool_use")]
        assert [e["index"] for e in events if e["type"] == "content_block_stop"] == [0, 1, 2]
    [call] = read_calls(live.journal).calls
    assert call.output.tolist() == engine.encode(SAID)


async def test_an_engine_that_does_not_stream_is_held(live: Harness, engine: ScriptedEngine):
    engine.replies = ["whole"]
    answer = await live.ask([{"role": "user", "content": "x"}], stream=True)
    assert text_of("chat", answer) == "whole"


async def test_an_abort_in_mid_stream_goes_on_where_it_was(live: Harness, engine: ScriptedEngine):
    """What was told stays told: the next attempt's ids come behind it, once."""
    release = asyncio.Event()
    release.set()

    async def cut(call: Running) -> StreamingResponse:
        async def lines() -> AsyncIterator[bytes]:
            yield orjson.dumps({"token_ids": engine.encode("Hel")}) + b"\n"
            await call.aborted.wait()
            yield orjson.dumps(engine.part(engine.encode("Hell"), "abort")) + b"\n"

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    engine.script = cut
    asking = asyncio.create_task(live.ask([{"role": "user", "content": "x"}], stream=True))
    await engine.until_seen(1)
    engine.script = streams(engine, "o there<|im_end|>", 3, release)
    await live.client.post(f"{engine.url}/abort_requests", json={"request_ids": []})
    await live.route(engine)
    assert text_of("chat", await asking) == "Hello there"


async def test_stop_texts_hold_a_stream(live: Harness, engine: ScriptedEngine):
    engine.replies = ["one STOP two"]
    answer = await live.ask([{"role": "user", "content": "x"}], stream=True, stop="STOP")
    assert text_of("chat", answer) == "one "
    assert "stream" not in engine.seen[0]
