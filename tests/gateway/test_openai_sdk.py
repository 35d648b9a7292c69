"""The official client, unmodified, against the gateway."""

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import openai
import pytest
from gateway_doubles import Harness, ScriptedEngine

from qwengyre.gateway.journal import rebuild

TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}]
CALL = 'Look.\n<tool_call>\n{"name": "bash", "arguments": {"cmd": "ls é"}}\n</tool_call>'


@pytest.fixture
async def client(harness: Harness) -> AsyncIterator[openai.AsyncOpenAI]:
    async with httpx.AsyncClient(trust_env=False) as http:
        yield openai.AsyncOpenAI(base_url=harness.base, api_key="unused", http_client=http, max_retries=0)


async def test_models(client):
    assert [m.id async for m in client.models.list()] == ["tiny"]


async def test_a_plain_answer(client, harness, engine):
    engine.replies = ["hello é"]
    answer = await client.chat.completions.create(model="any", messages=[{"role": "user", "content": "hi"}])
    assert answer.choices[0].message.content == "hello é"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(engine.seen[0]["token_ids"])
    assert answer.usage.completion_tokens == len(engine.encode("hello é<|im_end|>"))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_loop(client, harness, engine, stream):
    engine.replies = [CALL, "done"]
    talk = [{"role": "user", "content": "hi"}]
    message = await complete(client, talk, stream)
    (call,) = message["tool_calls"]
    assert message["content"] == "Look."
    assert json.loads(call["function"]["arguments"]) == {"cmd": "ls é"}
    talk += [message, {"role": "tool", "tool_call_id": call["id"], "content": "a b"}]
    assert (await complete(client, talk, stream))["content"] == "done"
    assert len(list(rebuild(harness.journal).leaves())) == 1


async def complete(client, talk, stream):
    if not stream:
        answer = await client.chat.completions.create(model="m", messages=talk, tools=TOOLS)
        return answer.choices[0].message.model_dump(exclude_none=True)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    text, calls, finish, usage = "", {}, None, None
    async for chunk in await client.chat.completions.create(model="m", messages=talk, tools=TOOLS, **options):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
            for call in choice.delta.tool_calls or []:
                calls[call.index] = call.model_dump(exclude={"index"})
    assert finish == ("tool_calls" if calls else "stop")
    assert usage is not None
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens > 0
    message = {"role": "assistant", "content": text}
    return message | ({"tool_calls": list(calls.values())} if calls else {})


async def test_streamed_and_final_say_the_same(client, engine):
    for text in (CALL, "plain", CALL[:-4], ""):
        engine.replies = [text, text]
        talk = [{"role": "user", "content": "hi"}]
        plain = await complete(client, talk, False)
        streamed = await complete(client, talk, True)
        for message in (plain, streamed):
            for call in message.get("tool_calls", []):
                call.pop("id")
        assert plain == streamed


async def test_errors_are_the_clients_own_classes(client, harness, engine):
    with pytest.raises(openai.BadRequestError):
        await client.chat.completions.create(model="m", messages=[])
    with pytest.raises(openai.BadRequestError) as error:
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x" * 140_000}])
    assert error.value.code == "context_length_exceeded"
    stranger = client.with_options(base_url=f"{harness.url}/v1")
    with pytest.raises(openai.AuthenticationError):
        await stranger.models.list()
    await harness.gateway.seal("0-0")
    with pytest.raises(openai.ConflictError):
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])


async def test_a_slow_stream_with_keep_alive(make_harness, engine: ScriptedEngine):
    harness, release = make_harness(keepalive_s=0.02), asyncio.Event()
    await harness.start()
    await harness.route(engine)

    async def slow(call):
        await release.wait()
        return await engine.reply(call)

    engine.script, seen = slow, 0
    async with httpx.AsyncClient(trust_env=False, timeout=httpx.Timeout(5)) as http:
        client = openai.AsyncOpenAI(base_url=harness.base, api_key="k", http_client=http)
        text = ""
        talk = [{"role": "user", "content": "x"}]
        async for chunk in await client.chat.completions.create(model="m", messages=talk, stream=True):
            seen += 1
            text += chunk.choices[0].delta.content or ""
            if seen == 5:
                release.set()
    assert (text, seen >= 6) == ("ok", True)
    await harness.stop()
