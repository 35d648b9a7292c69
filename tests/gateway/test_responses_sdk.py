"""The official OpenAI client's responses and completions against the gateway."""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import openai
import pytest
from gateway_doubles import Harness, ScriptedEngine

from qwengyre.gateway.journal import read_calls, rebuild
from qwengyre.types import Sampling

SCHEMA = {"type": "object", "properties": {}}
TOOLS: list[Any] = [
    {"type": "function", "name": "exec", "parameters": SCHEMA, "strict": False},
    {"type": "custom", "name": "patch", "description": "Edit.", "format": {"type": "text"}},
    {"type": "namespace", "name": "agents", "description": "", "tools": [{"type": "function", "name": "spawn"}]},
    {"type": "web_search"},
]


def written(name: str, arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


CALLS = "<think>\nhm\n</think>\n\nLook.\n" + "\n".join(
    (written("exec", {"cmd": "ls"}), written("patch", {"input": "*** é"}), written("agents.spawn", {"task": "t"}))
)


@pytest.fixture
async def harness(make_harness: Callable[..., Harness], engine: ScriptedEngine) -> AsyncIterator[Harness]:
    harness = make_harness(sampling=Sampling(temperature=0.8, max_tokens=2000))
    await harness.start()
    await harness.route(engine)
    yield harness
    await harness.stop()


@pytest.fixture
async def client(harness: Harness) -> AsyncIterator[openai.AsyncOpenAI]:
    async with httpx.AsyncClient(trust_env=False) as http:
        yield openai.AsyncOpenAI(base_url=harness.base, api_key="unused", http_client=http, max_retries=0)


async def respond(client: Any, items: list[Any], *, stream: bool, **fields: Any) -> tuple[Any, list[Any]]:
    """The response, and the items as a stream's `output_item.done` events told them."""
    asked = {"model": "m", "input": items, "tools": TOOLS, "store": False, **fields}
    if not stream:
        answer = await client.responses.create(**asked)
        return answer, list(answer.output)
    done: list[Any] = []
    final, numbers = None, []
    async for event in await client.responses.create(**asked, stream=True):
        numbers.append(event.sequence_number)
        if event.type == "response.output_item.done":
            done.append(event.item)
        if event.type in ("response.completed", "response.incomplete"):
            final = event.response
    assert numbers == list(range(len(numbers)))
    return final, done


@pytest.mark.parametrize("stream", [False, True])
async def test_every_kind_of_tool_and_the_echo(client, harness: Harness, engine: ScriptedEngine, stream: bool):
    engine.replies = [CALLS, "done"]
    items: list[Any] = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Work."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]},
    ]
    answer, output = await respond(client, items, stream=stream)
    assert answer.status == "completed"
    assert [item.type for item in output] == [
        "reasoning",
        "message",
        "function_call",
        "custom_tool_call",
        "function_call",
    ]
    assert [i.model_dump() for i in output] == [i.model_dump() for i in answer.output]
    reasoning, message, run, patch, spawn = output
    assert (reasoning.summary[0].text, message.content[0].text) == ("hm", "Look.")
    assert json.loads(run.arguments) == {"cmd": "ls"}
    assert (patch.name, patch.input) == ("patch", "*** é")
    assert (spawn.name, spawn.namespace) == ("spawn", "agents")
    assert answer.usage.input_tokens == len(engine.seen[0]["token_ids"])
    echoed = [item.model_dump(exclude_none=True) for item in output]
    outputs = [
        {"type": f"{i.type}_output", "call_id": i.call_id, "output": f"out {i.call_id}"} for i in (run, patch, spawn)
    ]
    second, _ = await respond(client, [*items, *echoed, *outputs], stream=stream)
    assert second.output_text == "done"
    calls = read_calls(harness.journal).calls
    assert [call.match for call in calls] == ["root", "extend"]
    assert len(list(rebuild(harness.journal).leaves())) == 1
    assert [m["role"] for m in calls[1].request["messages"]] == ["tool"] * 3
    declared = [t["function"]["name"] for t in calls[0].request["tools"]]
    assert declared == ["exec", "patch", "agents.spawn"]


@pytest.mark.parametrize("echo", ["all", "no reasoning", "other reasoning"])
async def test_three_ways_of_echoing_reasoning_give_one_tree(client, harness, engine: ScriptedEngine, echo: str):
    engine.replies = [f"<think>\nthought {n}\n</think>\n\nsaid {n}" for n in range(6)]
    items: list[Any] = [{"role": "user", "content": "go"}]
    for turn in range(6):
        _, output = await respond(client, items, stream=False)
        back = [item.model_dump(exclude_none=True) for item in output]
        if echo == "no reasoning":
            back = [item for item in back if item["type"] != "reasoning"]
        elif echo == "other reasoning":
            back[0]["summary"] = [{"type": "summary_text", "text": "something else"}]
        items += [*back, {"role": "user", "content": f"more {turn}"}]
    tree = rebuild(harness.journal)
    assert len(list(tree.leaves())) == 1
    assert tree.num_tokens == tree.lengths[-1]
    assert [call.match for call in read_calls(harness.journal).calls] == ["root"] + ["extend"] * 5


async def test_a_cut_answer_is_incomplete(client, engine: ScriptedEngine):
    engine.replies = ["a long answer"]
    answer, _ = await respond(client, [{"role": "user", "content": "x"}], stream=True, max_output_tokens=3)
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")


async def test_a_text_and_instructions(client, engine: ScriptedEngine, harness: Harness):
    answer = await client.responses.create(model="m", input="hi", instructions="Be brief.")
    assert answer.output_text == "ok"
    messages = read_calls(harness.journal).calls[0].request["messages"]
    assert messages == [{"role": "system", "text": "Be brief."}, {"role": "user", "text": "hi"}]


async def test_errors(client, harness: Harness):
    with pytest.raises(openai.BadRequestError) as error:
        await client.responses.create(model="m", input="x" * 140_000)
    assert error.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="nothing is stored here"):
        await client.responses.create(model="m", input="x", previous_response_id="resp_1")
    with pytest.raises(openai.BadRequestError, match="'computer_call' is not served"):
        await client.responses.create(model="m", input=[{"type": "computer_call"}])


async def test_counting(client, engine: ScriptedEngine):
    counted = await client.responses.input_tokens.count(model="m", input="hi there")
    await client.responses.create(model="m", input="hi there")
    assert counted.input_tokens == len(engine.seen[0]["token_ids"])


async def complete(client: Any, prompt: Any, *, stream: bool = False, **fields: Any) -> tuple[str, str]:
    asked = {"model": "m", "prompt": prompt, "max_tokens": 50, **fields}
    if not stream:
        choice = (await client.completions.create(**asked)).choices[0]
        return choice.text, choice.finish_reason
    text, finish, used = "", "", 0
    options = {"include_usage": True}
    async for chunk in await client.completions.create(**asked, stream=True, stream_options=options):
        used = chunk.usage.completion_tokens if chunk.usage else used
        for choice in chunk.choices:
            text, finish = text + choice.text, choice.finish_reason or finish
    assert used > 0
    return text, finish


@pytest.mark.parametrize("stream", [False, True])
async def test_completions_go_on_where_a_text_ends(client, harness, engine: ScriptedEngine, tokenizer, stream: bool):
    engine.replies = ["one", "two", "three", "four"]
    start = "<|im_start|>user\nhi é<|im_end|>\n<|im_start|>assistant\n"
    assert await complete(client, start, stream=stream) == ("one", "stop")
    assert engine.seen[0]["token_ids"] == tokenizer.encode(start, add_special_tokens=False)
    longer = start + "one<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"
    assert (await complete(client, longer, stream=stream))[0] == "two"
    assert (await complete(client, longer + "two and a half", stream=stream))[0] == "three"
    ids = tokenizer.encode(longer + "two<|im_end|>", add_special_tokens=False)
    assert (await complete(client, [*ids, 65], stream=stream))[0] == "four"
    log, tree = read_calls(harness.journal), rebuild(harness.journal)
    assert [call.match for call in log.calls] == ["root", "extend", "branch", "extend"]
    assert log.calls[3].suffix.tolist() == [65]
    assert len(list(tree.leaves())) == 2


async def test_completions_stop_at_a_text(client, engine: ScriptedEngine):
    engine.replies = ["a b c", "a b c"]
    assert await complete(client, "x", stop="b") == ("a ", "stop")
    assert await complete(client, "x", stop=["c", "zz"]) == ("a b ", "stop")
    with pytest.raises(openai.BadRequestError, match="one text"):
        await complete(client, ["a", "b"])


@pytest.mark.parametrize("stream", [False, True])
async def test_custom_tools_of_chat(client, harness, engine: ScriptedEngine, stream: bool):
    engine.replies = [written("patch", {"input": "x\ny"}), "done"]
    tools: list[Any] = [{"type": "custom", "custom": {"name": "patch"}}]
    talk: list[Any] = [{"role": "user", "content": "hi"}]
    answer = await client.chat.completions.create(model="m", messages=talk, tools=tools)
    [call] = answer.choices[0].message.tool_calls
    assert (call.custom.name, call.custom.input) == ("patch", "x\ny")
    talk += [answer.choices[0].message.model_dump(exclude_none=True)]
    talk += [{"role": "tool", "tool_call_id": call.id, "content": "ok"}]
    await client.chat.completions.create(model="m", messages=talk, tools=tools)
    assert read_calls(harness.journal).calls[1].match == "extend"
