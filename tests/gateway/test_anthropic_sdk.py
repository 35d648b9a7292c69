"""The official Anthropic client, unmodified, against the gateway."""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import anthropic
import pytest
from gateway_doubles import Harness, ScriptedEngine

from qwengyre import profiles
from qwengyre.gateway.echo import Edits
from qwengyre.gateway.journal import read_calls, rebuild
from qwengyre.types import Sampling

TOOLS: list[Any] = [
    {"name": "Bash", "description": "Run.", "input_schema": {"type": "object", "properties": {"command": {}}}},
    {"type": "web_search_20250305", "name": "web_search"},
]
CALLS = (
    "<think>\nhm\n</think>\n\nLook.\n"
    '<tool_call>\n{"name": "Bash", "arguments": {"command": "cd /x && ls é  ", "n": 1.0}}\n</tool_call>\n'
    '<tool_call>\n{"name": "Bash", "arguments": {"command": "pwd"}}\n</tool_call>'
)


@pytest.fixture
async def harness(make_harness: Callable[..., Harness], engine: ScriptedEngine) -> AsyncIterator[Harness]:
    edits = Edits.of(profiles.edits("claude-code"))
    harness = make_harness(sampling=Sampling(temperature=0.8, max_tokens=2000), edits=edits)
    await harness.start()
    await harness.route(engine)
    yield harness
    await harness.stop()


@pytest.fixture
async def client(harness: Harness) -> AsyncIterator[anthropic.AsyncAnthropic]:
    base = f"{harness.url}/x/{harness.token}"
    async with anthropic.DefaultAsyncHttpxClient(trust_env=False) as http:
        yield anthropic.AsyncAnthropic(base_url=base, api_key="unused", http_client=http, max_retries=0)


async def say(client: Any, talk: list[Any], *, stream: bool = False, **fields: Any) -> Any:
    asked = {"model": "m", "max_tokens": 200, "messages": talk, "tools": TOOLS, **fields}
    if not stream:
        return await client.beta.messages.create(**asked)
    async with client.beta.messages.stream(**asked) as events:
        async for _ in events:
            pass
        return await events.get_final_message()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_loop_with_thinking(client, harness: Harness, engine: ScriptedEngine, stream: bool):
    engine.replies = [CALLS, "done"]
    talk: list[Any] = [{"role": "user", "content": "hi"}]
    first = await say(client, talk, stream=stream, system="Work.", thinking={"type": "adaptive"})
    kinds = [block.type for block in first.content]
    assert (kinds, first.stop_reason) == (["thinking", "text", "tool_use", "tool_use"], "tool_use")
    thinking, text, one, two = first.content
    assert (thinking.thinking, text.text, one.input["command"]) == ("hm", "Look.", "cd /x && ls é  ")
    assert thinking.signature
    usage = first.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == len(engine.seen[0]["token_ids"])
    assert usage.output_tokens == len(engine.encode(CALLS + "<|im_end|>"))
    # As Claude Code sends it back: tidied, an empty argument added, blanks at line ends gone.
    one.input = {"n": 1, "command": "ls é", "replace_all": False}
    talk.append({"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in first.content]})
    results = [{"type": "tool_result", "tool_use_id": b.id, "content": "out"} for b in (one, two)]
    talk.append({"role": "user", "content": [*results, {"type": "text", "text": "reminder"}]})
    talk.append({"role": "system", "content": "a notice"})
    second = await say(client, talk, stream=stream, system="Work.")
    assert [block.text for block in second.content] == ["done"]
    assert second.usage.cache_read_input_tokens > 0
    calls, tree = read_calls(harness.journal).calls, rebuild(harness.journal)
    assert [call.match for call in calls] == ["root", "extend"]
    assert len(list(tree.leaves())) == 1
    assert [m["role"] for m in calls[1].request["messages"]] == ["tool", "tool", "user", "system"]


async def test_wire_noise_is_no_branch(client, harness: Harness, engine: ScriptedEngine):
    """The cache mark moves, one block is a string, the billing line changes: one conversation all the same."""
    marked = {"cache_control": {"type": "ephemeral"}}
    engine.replies = ["one", "two", "three"]
    talk: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "hi", **marked}]}]
    for turn in range(3):
        head = [
            {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2; cch={turn}"},
            {"type": "text", "text": "Work.", **marked},
        ]
        answer = await say(client, talk, system=head, metadata={"user_id": str(turn)})
        talk[-1]["content"] = talk[-1]["content"][0]["text"]
        talk.append({"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in answer.content]})
        talk.append({"role": "user", "content": [{"type": "text", "text": f"more {turn}", **marked}]})
    assert [call.match for call in read_calls(harness.journal).calls] == ["root", "extend", "extend"]


async def test_counting_makes_no_call(client, harness: Harness, engine: ScriptedEngine):
    talk: list[Any] = [{"role": "user", "content": "hi"}]
    counted = await client.beta.messages.count_tokens(model="m", messages=talk, tools=TOOLS)
    await say(client, talk)
    assert counted.input_tokens == len(engine.seen[0]["token_ids"])
    assert len(read_calls(harness.journal).calls) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_stop_sequences_cut_the_answer_and_its_ids(client, harness, engine: ScriptedEngine, stream: bool):
    engine.replies = ["one STOP two", "next"]
    answer = await say(client, [{"role": "user", "content": "hi"}], stream=stream, stop_sequences=["zz", "STOP"])
    assert (answer.content[0].text, answer.stop_reason, answer.stop_sequence) == ("one ", "stop_sequence", "STOP")
    [call] = read_calls(harness.journal).calls
    assert call.output.tolist() == engine.encode("one STOP")
    assert len(call.output) == len(call.logprobs) == call.stretches[-1].end == answer.usage.output_tokens
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "one "}]
    await say(client, [*talk, {"role": "user", "content": "go on"}])
    assert read_calls(harness.journal).calls[1].match == "extend"


async def test_a_cut_answer_and_an_empty_one(client, engine: ScriptedEngine):
    engine.replies = ["a long answer", "", CALLS[:-20]]
    talk = [{"role": "user", "content": "hi"}]
    assert (await say(client, talk, max_tokens=3)).stop_reason == "max_tokens"
    empty = await say(client, talk)
    assert (empty.content, empty.stop_reason) == ([], "end_turn")


async def test_errors_are_the_clients_own_classes(client, harness: Harness):
    talk = [{"role": "user", "content": "x" * 140_000}]
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: 1\d{5} tokens > 131072 maximum") as error:
        await say(client, talk)
    assert error.value.body["error"]["type"] == "invalid_request_error"
    with pytest.raises(anthropic.BadRequestError, match="at least one message"):
        await say(client, [])
    with pytest.raises(anthropic.BadRequestError, match="type 'image'"):
        await say(client, [{"role": "user", "content": [{"type": "image", "source": {}}]}])
    stranger = client.with_options(base_url=harness.url)
    with pytest.raises(anthropic.AuthenticationError):
        await say(stranger, talk)
    with pytest.raises(anthropic.NotFoundError) as missing:
        await client.messages.batches.list()
    assert missing.value.body["type"] == "error"


async def test_models(client):
    assert [m.id async for m in client.models.list()] == ["tiny"]


async def test_forced_tools_are_not_trained(client, harness: Harness, engine: ScriptedEngine):
    await say(client, [{"role": "user", "content": "x"}], tool_choice={"type": "any"})
    assert [c.trainable for c in read_calls(harness.journal).calls] == [False]
    assert json.loads(json.dumps(read_calls(harness.journal).calls[0].request["ignored"])) == {}
