"""Logical calls in every protocol, streaming or not: role changes, deaths, publishes and impatient clients are
invisible, and what was said before the cut is said once."""

import asyncio
from typing import Any

import httpx
import orjson
import pytest
from gateway_doubles import Harness, Running, ScriptedEngine
from starlette.responses import Response

from qwengyre.gateway.journal import read_calls, rebuild

TALK = [{"role": "user", "content": "a"}]
PROTOCOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("chat/completions", {"messages": TALK}),
    "completions": ("completions", {"prompt": "a", "max_tokens": 50}),
    "responses": ("responses", {"input": TALK}),
    "anthropic": ("messages?beta=true", {"messages": TALK, "max_tokens": 50}),
}
both = pytest.mark.parametrize("stream", [False, True])
every = pytest.mark.parametrize("protocol", sorted(PROTOCOLS))


async def post(harness: Harness, protocol: str, stream: bool, **client: Any) -> httpx.Response:
    path, body = PROTOCOLS[protocol]
    return await harness.client.post(f"{harness.base}/{path}", json={"model": "m", **body, "stream": stream}, **client)


def text_of(protocol: str, answer: httpx.Response) -> str:
    """The text, put together from the deltas where the answer is a stream."""
    assert answer.status_code == 200, answer.text
    if not answer.headers["content-type"].startswith("text/event-stream"):
        got = answer.json()
        return {
            "chat": lambda: got["choices"][0]["message"]["content"],
            "completions": lambda: got["choices"][0]["text"],
            "responses": lambda: got["output"][0]["content"][0]["text"],
            "anthropic": lambda: got["content"][0]["text"],
        }[protocol]()
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    events = [orjson.loads(line) for line in lines if line != "[DONE]"]
    ends = {"chat": "[DONE]", "completions": "[DONE]"}
    assert lines[-1] == ends.get(protocol, lines[-1])
    if protocol in ends:
        choices = [choice for event in events for choice in event["choices"]]
        return "".join(c["delta"].get("content") or "" if protocol == "chat" else c["text"] for c in choices)
    assert events[-1]["type"] == {"responses": "response.completed", "anthropic": "message_stop"}[protocol]
    deltas = [event["delta"] for event in events if event["type"].endswith(("output_text.delta", "_block_delta"))]
    return "".join(delta if isinstance(delta, str) else delta.get("text", "") for delta in deltas)


def partial(engine: ScriptedEngine, text: str) -> Any:
    async def script(call: Running) -> dict[str, Any]:
        await call.aborted.wait()
        return engine.part(engine.encode(text), "abort")

    return script


@both
@every
async def test_an_abort_in_mid_answer(harness: Harness, engine: ScriptedEngine, protocol: str, stream: bool):
    engine.script = partial(engine, "Hel")
    asking = asyncio.create_task(post(harness, protocol, stream))
    await engine.until_seen(1)
    await harness.client.post(f"{engine.url}/abort_requests", json={"request_ids": []})
    engine.script, engine.replies, engine.version = engine.reply, ["lo"], 2
    await harness.route(engine)
    answer = await asking
    assert text_of(protocol, answer) == "Hello"
    [call] = read_calls(harness.journal).calls
    assert [(s.start, s.end, s.version, s.cause) for s in call.stretches] == [(0, 3, 1, "abort"), (3, 6, 2, "stop")]
    assert engine.seen[1]["token_ids"] == engine.seen[0]["token_ids"] + engine.encode("Hel")


@both
@every
async def test_an_engine_that_dies(harness: Harness, engine: ScriptedEngine, protocol: str, stream: bool):
    async def dies(call: Running) -> Response:
        engine.script = engine.reply
        return Response("gone", 500)

    engine.script, engine.replies = dies, ["whole"]
    asking = asyncio.create_task(post(harness, protocol, stream))
    await harness.heard.wait()
    await harness.route(engine)
    assert text_of(protocol, await asking) == "whole"
    assert len(read_calls(harness.journal).calls) == 1


@both
@every
async def test_a_publish_in_mid_answer(harness: Harness, engine: ScriptedEngine, protocol: str, stream: bool):
    async def published(call: Running) -> dict[str, Any]:
        return engine.part(engine.encode("Hello<|im_end|>"), "stop", [(1, 0, 2), (2, 2, 6)])

    engine.script = published
    assert text_of(protocol, await post(harness, protocol, stream)) == "Hello"
    [call] = read_calls(harness.journal).calls
    assert [(s.version, s.start, s.end) for s in call.stretches] == [(1, 0, 2), (2, 2, 6)]


@both
@every
async def test_a_client_that_comes_back(harness: Harness, engine: ScriptedEngine, protocol: str, stream: bool):
    """The same request after the connection broke goes on with the same call, from where it was."""
    engine.script = partial(engine, "Hel")
    with pytest.raises(httpx.TimeoutException):
        await post(harness, protocol, stream, timeout=httpx.Timeout(0.3))
    await engine.until_seen(1)
    engine.script, engine.replies = engine.reply, ["lo"]
    assert text_of(protocol, await post(harness, protocol, stream)) == "Hello"
    log = read_calls(harness.journal)
    assert [call.output.tolist() for call in log.calls] == [engine.encode("Hello<|im_end|>")]


@both
@every
async def test_an_equal_request_beside_one_in_flight_is_a_call_of_its_own(
    harness: Harness, engine: ScriptedEngine, protocol: str, stream: bool
):
    engine.replies = ["one", "two"]
    answers = await asyncio.gather(*(post(harness, protocol, stream) for _ in range(2)))
    assert sorted(text_of(protocol, answer) for answer in answers) == ["one", "two"]
    calls, tree = read_calls(harness.journal).calls, rebuild(harness.journal)
    assert [len(call.suffix) > 0 for call in calls] == [True, False], "one prompt, held once"
    assert len(list(tree.leaves())) == 2


@every
async def test_a_call_that_fails_after_the_headers_ends_its_stream(
    harness: Harness, engine: ScriptedEngine, protocol: str
):
    async def refuses(call: Running) -> Response:
        return Response(orjson.dumps({"error": {"type": "too_long", "message": "the engine's window is full"}}), 400)

    engine.script = refuses
    streamed = (await post(harness, protocol, True)).text
    assert "the engine's window is full" in streamed
    assert ("event: error" in streamed) == (protocol == "anthropic")
    assert ("response.failed" in streamed) == (protocol == "responses")
    whole = await post(harness, protocol, False)
    assert whole.status_code == 400
    error = whole.json()["error"]
    assert error.get("code", "context_length_exceeded") == "context_length_exceeded"
    assert not read_calls(harness.journal).calls
