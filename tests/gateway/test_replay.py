"""Whole sessions over the wire: one thread is one leaf, whatever the harness does to what it sends back."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gateway_doubles import Harness, ScriptedEngine, conditioning, delivered, system, user

from qwengyre.gateway.echo import Edits
from qwengyre.gateway.journal import read_calls, rebuild
from qwengyre.trajectory.tree import Tree
from qwengyre.types import Kind

TOOLS = [
    {"type": "function", "function": {"name": "bash", "description": "Run.", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}},
]
Message = dict[str, Any]
Echo = Callable[[Message], Message]


def tool_call(command: str, text: str = "") -> str:
    arguments = '{"timeout":  5.0, "cmd": "' + command + '"}'
    return f'{text}<tool_call>\n{{"name": "bash", "arguments": {arguments}}}\n</tool_call>'


def verbatim(message: Message) -> Message:
    return message


def reserialised(message: Message) -> Message:
    """qwen, opencode, pi: compact JSON, whole numbers, `content` missing when there is none, odd extra keys."""
    echo = {"role": "assistant", "refusal": None, **{k: v for k, v in message.items() if k == "content" and v}}
    calls = message.get("tool_calls")
    if calls:
        echo["tool_calls"] = [{**c, "function": {**c["function"], "arguments": compact(c)}} for c in calls]
    return echo


def rebuilt(message: Message) -> Message:
    """Keys in another order, text in parts with a moving cache mark, whitespace trimmed, text beside calls dropped."""
    calls = message.get("tool_calls")
    if not calls:
        part = {"type": "text", "text": message["content"].strip(), "cache_control": {"type": "ephemeral"}}
        return {"role": "assistant", "content": [part], "reasoning_content": "not what was thought"}
    swapped = [{**c, "function": {**c["function"], "arguments": reordered(c)}} for c in calls]
    return {"role": "assistant", "content": "", "tool_calls": swapped}


def compact(call: Message) -> str:
    value = json.loads(call["function"]["arguments"])
    return json.dumps(value | {"timeout": 5}, separators=(",", ":"))


def reordered(call: Message) -> str:
    return json.dumps(dict(reversed(json.loads(call["function"]["arguments"]).items())), indent=1, ensure_ascii=True)


async def session(harness: Harness, engine: ScriptedEngine, echo: Echo, turns: int) -> list[Message]:
    """A tool-using conversation of `turns` calls; the last message is noise-marked anew in every request."""
    talk: list[Message] = [system("You work."), user("Do it. <|im_end|> é")]
    for turn in range(turns):
        engine.replies.append(f" Step {turn}.\n" if turn % 5 == 4 else tool_call(f"echo {turn} é", f"I do {turn}.\n"))
        marked = [*talk[:-1], {**talk[-1], "content": noisy(talk[-1]["content"])}]
        answer = await harness.say(marked, tools=TOOLS)
        talk.append(echo(answer))
        calls = answer.get("tool_calls", [])
        talk += ({"role": "tool", "tool_call_id": c["id"], "content": f"out {turn}"} for c in calls)
        if not calls:
            talk.append(user(f"go on {turn}"))
    return talk


def noisy(content: str) -> list[Message]:
    return [{"type": "text", "text": content, "cache_control": {"type": "ephemeral"}}]


def shape(tree: Tree) -> Any:
    return (tree.parents, tree.kinds, [tree.ids(r).tolist() for r in range(len(tree))])


def assert_exact(harness: Harness, engine: ScriptedEngine) -> None:
    """What each engine call was conditioned on is path(parent) + suffix in the journal."""
    sent = {tuple(call["token_ids"]) for call in engine.seen}
    held = {tuple(ids.tolist()) for ids in conditioning(read_calls(harness.journal)).values()}
    assert sent == held


@pytest.mark.parametrize("echo", [verbatim, reserialised, rebuilt])
async def test_fifty_turns_are_one_leaf_and_nothing_is_encoded_twice(harness, engine, renderer, echo):
    talk = await session(harness, engine, echo, 50)
    log, tree = read_calls(harness.journal), rebuild(harness.journal)
    assert [c.match for c in log.calls] == ["root"] + ["extend"] * 49
    assert len(list(tree.leaves())) == 1
    assert tree.num_tokens == tree.lengths[-1], "no token is held twice"
    # One row a message and two of glue a call (what closes a turn, what opens the next), and no more.
    contexts = [r for r, kind in enumerate(tree.kinds) if kind is Kind.CONTEXT]
    assert len(contexts) == len(talk) - 50 - (1 if talk[-1]["role"] != "assistant" else 0)
    assert_exact(harness, engine)


async def test_three_ways_of_echoing_give_the_same_tree(make_harness, engine):
    shapes: list[Any] = []
    for name, echo in (("a", verbatim), ("b", reserialised), ("c", rebuilt)):
        harness = make_harness(name)
        await harness.start()
        await harness.route(engine)
        await session(harness, engine, echo, 12)
        await harness.gateway.seal("0-0")
        shapes.append(shape(rebuild(harness.journal)))
        await harness.stop()
    assert shapes[0] == shapes[1] == shapes[2]


@pytest.mark.parametrize(
    "change",
    [
        {"arguments": '{"timeout": 5.0, "cmd": "rm"}'},
        {"arguments": '{"timeout": 6, "cmd": "ls"}'},
        {"arguments": '{"timeout": 5.0, "cmd": "ls", "new": true}'},
        {"arguments": '{"timeout": 5.0'},
        {"arguments": "{}"},
        {"name": "other"},
    ],
)
async def test_a_changed_value_is_a_branch(harness, engine, change):
    engine.replies = [tool_call("ls"), "done"]
    talk = [system("s"), user("u")]
    answer = await harness.say(talk, tools=TOOLS)
    answer["tool_calls"][0]["function"] |= change
    talk += [answer, {"role": "tool", "tool_call_id": answer["tool_calls"][0]["id"], "content": "out"}]
    await harness.say(talk, tools=TOOLS)
    tree = rebuild(harness.journal)
    first, second = tree.leaves()
    assert tree.kinds[first] is Kind.SAMPLED
    shared = set(tree.path(first)) & set(tree.path(second))
    assert len(shared) == 2, "system and user message are shared; the changed turn is context of its own"
    assert_exact(harness, engine)


@pytest.mark.parametrize(
    ("change", "edits", "same"),
    [
        ({"arguments": '{"cmd": "ls", "timeout": 5}'}, {}, True),
        ({"arguments": '{"timeout": 5.0, "\\u0063md": "\\u006cs"}'}, {}, True),
        ({"arguments": '{"cmd": "ls", "timeout": 5, "new": false, "more": null}'}, {"fills": True}, True),
        ({"arguments": '{"cmd": "ls", "timeout": 5, "new": false}'}, {"trims": True}, False),
        ({"arguments": '{"cmd": "ls", "timeout": 5, "new": true}'}, {"fills": True, "trims": True}, False),
        ({"arguments": '{"timeout": 5.0, "cmd": "ls  "}'}, {"trims": True}, True),
        ({"arguments": '{"timeout": 5.0, "cmd": "ls  "}'}, {"fills": True}, False),
        ({"name": "invalid", "arguments": '{"error": "no such tool"}'}, {"renamed": {"invalid": "*"}}, True),
        ({"name": "invalid", "arguments": '{"error": "no such tool"}'}, {"renamed": {"g": "bash"}}, False),
        ({"name": "g"}, {"renamed": {"g": "bash"}}, True),
        ({"name": "g"}, {}, False),
        ({"arguments": '{"timeout": 5.0, "cmd": "s"}'}, {"cut": [["bash", "cmd", "^l"]]}, True),
        ({"arguments": '{"timeout": 5.0, "cmd": "s"}'}, {"cut": [["g", "cmd", "^l"]]}, False),
    ],
)
async def test_what_a_harness_does_to_a_call_is_no_change_for_that_harness(make_harness, engine, change, edits, same):
    harness = make_harness(edits=Edits.of(edits))
    await harness.start()
    await harness.route(engine)
    engine.replies = [tool_call("ls"), "done"]
    answer = await harness.say([user("u")], tools=TOOLS)
    answer["tool_calls"][0]["function"] |= change
    result = {"role": "tool", "tool_call_id": answer["tool_calls"][0]["id"], "content": "out"}
    await harness.say([user("u"), answer, result], tools=TOOLS)
    assert len(list(rebuild(harness.journal).leaves())) == (1 if same else 2)
    assert_exact(harness, engine)
    await harness.stop()


async def test_true_is_not_one(harness, engine):
    engine.replies = ['<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>', "done"]
    answer = await harness.say([user("u")], tools=TOOLS)
    answer["tool_calls"][0]["function"]["arguments"] = '{"a": true}'
    await harness.say([user("u"), answer, user("v")], tools=TOOLS)
    assert len(list(rebuild(harness.journal).leaves())) == 2


async def test_a_cleared_tool_result_branches_where_it_was_cleared(harness, engine):
    talk = await session(harness, engine, verbatim, 4)
    cleared = [m if m.get("role") != "tool" or "1" not in m["content"] else {**m, "content": "[cleared]"} for m in talk]
    await harness.say(cleared, tools=TOOLS)
    log = read_calls(harness.journal)
    assert log.calls[-1].match == "branch"
    tree = rebuild(harness.journal)
    old, new = tree.leaves()
    kept = [r for r in tree.path(new) if r in set(tree.path(old))]
    assert sum(tree.kinds[r] is Kind.SAMPLED for r in kept) == 2
    again = [r for r in tree.path(new) if r not in kept and tree.kinds[r] is Kind.SAMPLED]
    assert len(again) == 1, (
        "what the model said after the cleared result is context now; only the new answer is sampled"
    )
    assert_exact(harness, engine)


async def test_a_kept_tail_after_a_compaction_is_restored_raw(harness, engine):
    engine.replies = [tool_call("ls", "Odd   text "), "summary", "done"]
    answer = await harness.say([system("s"), user("long")], tools=TOOLS)
    result = {"role": "tool", "tool_call_id": answer["tool_calls"][0]["id"], "content": "out"}
    await harness.say([system("s"), user("long"), reserialised(answer), result], tools=TOOLS)
    await harness.say([system("s"), user("summary of it"), reserialised(answer), result], tools=TOOLS)
    log, tree = read_calls(harness.journal), rebuild(harness.journal)
    raw = log.calls[0].output.tolist()
    tail = log.calls[2].suffix.tolist()
    assert any(tail[i : i + len(raw)] == raw for i in range(len(tail))), "the very ids that were sampled, as context"
    assert sum(kind is Kind.SAMPLED for kind in tree.kinds) == 3
    assert_exact(harness, engine)


async def test_wire_noise_about_tools_is_one_value(harness, engine):
    base = [user("u")]
    await harness.say(base)
    await harness.say(base, tools=[])
    await harness.say(base, tools=None)
    tree = rebuild(harness.journal)
    leaves = list(tree.leaves())
    assert len(leaves) == 3
    assert len({tree.parents[leaf] for leaf in leaves}) == 1


async def test_other_tools_are_another_root(harness, engine):
    await harness.say([user("u")], tools=TOOLS)
    await harness.say([user("u")], tools=TOOLS[:1])
    log = read_calls(harness.journal)
    assert [c.match for c in log.calls] == ["root", "root"]
    assert len({c.thread for c in log.calls}) == 2


async def test_a_truncated_turn_is_closed_with_glue(harness, engine, renderer):
    engine.replies = ["too long an answer", "ok"]
    answer = (await harness.ask([user("u")], max_tokens=8)).json()["choices"][0]
    assert answer["finish_reason"] == "length"
    await harness.say([user("u"), answer["message"], user("go on")])
    second = read_calls(harness.journal).calls[1]
    assert second.segments[0] == (Kind.GLUE, 2)
    canonical = renderer.start(canonical_messages([user("u"), answer["message"], user("go on")]), ())
    assert engine.seen[1]["token_ids"] == canonical.ids.tolist()


async def test_the_path_is_the_canonical_render_of_the_conversation(harness, engine, renderer):
    """The sampled texts here encode to the sampled ids, so growing the path must change nothing."""
    engine.replies = ["one", "two", "three"]
    talk: list[Message] = [system("s"), user("u")]
    for turn in range(3):
        talk += [await harness.say(talk), user(f"more {turn}")]
    await harness.say(talk)
    assert engine.seen[-1]["token_ids"] == renderer.start(canonical_messages(talk), ()).ids.tolist()


async def test_few_shot_answers_are_context(harness, engine):
    talk = [system("s"), user("q"), {"role": "assistant", "content": "a"}, user("u")]
    await harness.say(talk)
    tree = rebuild(harness.journal)
    assert tree.kinds == [Kind.CONTEXT] * 4 + [Kind.GLUE, Kind.SAMPLED]


async def test_a_rejected_answer_is_a_delivered_dead_end(harness, engine):
    engine.replies = ["bad", "good", "end"]
    await harness.say([user("u")])
    good = await harness.say([user("u")])
    await harness.say([user("u"), good, user("v")])
    await delivered(harness, {0, 1, 2})
    tree = rebuild(harness.journal)
    assert len(list(tree.leaves())) == 2
    assert not tree.withheld
    assert [c.match for c in read_calls(harness.journal).calls] == ["root", "branch", "extend"]


async def test_control_tokens_that_were_sampled_survive_the_round_trip(harness, engine):
    odd = [*engine.encode("a"), 258, *engine.encode("b\xff"), 257, 195, 256]
    ids = iter([odd, engine.encode("ok<|im_end|>")])

    async def script(_: Any) -> Any:
        return engine.part(next(ids), "stop")

    engine.script = script
    answer = await harness.say([user("u")])
    await harness.say([user("u"), answer, user("v")])
    assert engine.seen[1]["token_ids"][: len(engine.seen[0]["token_ids"]) + len(odd)] == [
        *engine.seen[0]["token_ids"],
        *odd,
    ]


def canonical_messages(talk: list[Message]) -> Any:
    from qwengyre.gateway.dialects.base import Known
    from qwengyre.gateway.dialects.chat import Chat

    return Chat().decode({"messages": talk}, Known()).messages


async def test_random_conversations_are_always_exact(harness, engine):
    """Threads, echoes, re-asks and edits at random: never an error, and conditioning ids always as recorded."""
    rng = np.random.default_rng(5)
    pool: list[list[Message]] = [[system("s"), user("u")], [user("w")]]
    for step in range(60):
        talk = list(pool[rng.integers(len(pool))])
        engine.replies.append(tool_call(f"c{step}") if rng.random() < 0.5 else f"text {step}")
        tools = TOOLS if rng.random() < 0.8 else None
        answer = await harness.say(talk, tools=tools, max_tokens=int(rng.integers(3, 90)))
        match rng.integers(4):
            case 0:
                talk.append(user(f"edit {step}"))
            case 1:
                talk += [reserialised(answer), user(f"after {step}")]
            case 2:
                talk += [rebuilt(answer), user(f"after {step}")]
            case _:
                talk = [*talk[:1], *talk[2:], user(f"cut {step}")]
        pool.append(talk[-9:])
    assert_exact(harness, engine)
    log = read_calls(harness.journal)
    assert len(log.calls) == 60
    shape(rebuild(harness.journal))
