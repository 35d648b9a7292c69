"""Logical calls: role changes, dead engines, impatient clients. The harness sees one slow, whole answer."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import orjson
import pytest
from gateway_doubles import Harness, Running, ScriptedEngine, conditioning, delivered, until, user
from starlette.responses import Response

from qwengyre.gateway.journal import read_calls, rebuild
from qwengyre.types import Stretch


@pytest.fixture
async def second(tokenizer) -> AsyncIterator[ScriptedEngine]:
    engine = ScriptedEngine("cell1.0")
    engine.encode = lambda text: tokenizer.encode(text, add_special_tokens=False)
    await engine.start()
    yield engine
    await engine.stop()


def partial_until_abort(engine: ScriptedEngine, text: str) -> Any:
    """A script: runs until it is aborted, then answers with `text` made so far."""

    async def script(call: Running) -> dict[str, Any]:
        await call.aborted.wait()
        return engine.part(engine.encode(text), "abort")

    return script


async def test_an_aborted_call_goes_on_at_the_new_home(harness, engine, second):
    engine.script = partial_until_abort(engine, "Hel")
    second.version, second.replies = 2, ["lo"]
    asking = asyncio.create_task(harness.say([user("a")], max_tokens=50))
    await engine.until_seen(1)
    await harness.route(engine, second, home=1)
    await harness.client.post(f"{engine.url}/abort_requests", json={"request_ids": []})
    assert (await asking)["content"] == "Hello"
    first, later = engine.seen[0], second.seen[0]
    assert later["token_ids"] == first["token_ids"] + engine.encode("Hel")
    assert (first["sampling_params"]["max_tokens"], later["sampling_params"]["max_tokens"]) == (50, 47)
    (call,) = read_calls(harness.journal).calls
    assert call.output.tolist() == engine.encode("Hello<|im_end|>")
    assert np.allclose(call.logprobs, -(call.output + 1) / 1024)
    assert call.stretches == (Stretch(0, 3, 1, "cell0.0", "abort"), Stretch(3, 6, 2, "cell1.0", "stop"))
    assert not harness.lost


async def test_an_abort_without_newer_routes_waits_for_them(harness, engine):
    engine.script = partial_until_abort(engine, "Hel")
    asking = asyncio.create_task(harness.say([user("a")]))
    await engine.until_seen(1)
    await harness.client.post(f"{engine.url}/abort_requests", json={"request_ids": []})
    await until(lambda: live(harness) == [("queued", 3)])
    engine.script, engine.replies = engine.reply, ["lo"]
    await harness.route(engine)
    assert (await asking)["content"] == "Hello"
    assert len(engine.seen) == 2


async def test_a_closed_engine_queues_the_call_until_the_routes_change(harness, engine, second):
    engine.closed = True
    asking = asyncio.create_task(harness.say([user("a")]))
    await engine.until_seen(1)
    await until(lambda: live(harness) == [("queued", 0)])
    assert not harness.lost
    await harness.route(engine, second, home=1)
    assert (await asking)["content"] == "ok"
    assert len(engine.seen) == 1
    assert await harness.gateway.queued_s("0-0") > 0


async def test_an_execution_without_a_home_waits(harness, engine):
    await harness.route(engine, home=7)
    asking = asyncio.create_task(harness.say([user("a")]))
    await until(lambda: live(harness) == [("queued", 0)])
    assert not engine.seen
    await harness.route(engine)
    assert (await asking)["content"] == "ok"


async def test_a_dead_engine_is_reported_once_and_never_left_alone(harness, engine, second):
    async def die(_: Running) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    engine.script = die
    asking = [asyncio.create_task(harness.say([user(t)])) for t in "ab"]
    await engine.until_seen(2)
    await engine.stop()
    await asyncio.wait_for(harness.heard.wait(), 20)
    await until(lambda: live(harness) == [("queued", 0)] * 2)
    assert [(cell, incarnation) for cell, incarnation, _ in harness.lost] == [(0, 0)]
    await harness.route(engine, second, home=1)
    assert [(await a)["content"] for a in asking] == ["ok", "ok"]


async def test_a_refused_connection_keeps_the_partial(harness, engine, second):
    engine.script = partial_until_abort(engine, "Hel")
    second.replies = ["lo"]
    asking = asyncio.create_task(harness.say([user("a")]))
    await engine.until_seen(1)
    dead = ScriptedEngine()
    await dead.start()
    await dead.stop()
    await harness.route(dead)
    await harness.client.post(f"{engine.url}/abort_requests", json={"request_ids": []})
    await asyncio.wait_for(harness.heard.wait(), 20)
    await harness.route(second)
    assert (await asking)["content"] == "Hello"


@pytest.mark.parametrize(
    "answer",
    [
        Response(b"oops", 500),
        Response(b"not json"),
        Response(orjson.dumps({"choices": []})),
        Response(orjson.dumps({"engine": "e", "choices": [{"token_ids": [1, 2], "finish_reason": "stop"}]})),
    ],
)
async def test_an_answer_out_of_shape_is_reported_and_never_reaches_the_harness(harness, engine, second, answer):
    async def confused(_: Running) -> Response:
        return answer

    engine.script = confused
    asking = asyncio.create_task(harness.say([user("a")]))
    await asyncio.wait_for(harness.heard.wait(), 20)
    await harness.route(engine, second, home=1)
    assert (await asking)["content"] == "ok"


async def test_versions_change_within_one_answer(harness, engine):
    async def published(_: Running) -> dict[str, Any]:
        return engine.part(engine.encode("abcd<|im_end|>"), "stop", [(1, 0, 2), (2, 2, 5)])

    engine.script = published
    await harness.say([user("a")])
    (call,) = read_calls(harness.journal).calls
    assert call.stretches == (Stretch(0, 2, 1, "cell0.0", "version"), Stretch(2, 5, 2, "cell0.0", "stop"))
    tree = rebuild(harness.journal)
    assert tree.versions[len(tree) - 1] == ((2, 1), (5, 2))


async def test_a_partial_that_fills_the_budget_is_a_length_stop(harness, engine):
    engine.script = partial_until_abort(engine, "Hel")
    asking = asyncio.create_task(harness.ask([user("a")], max_tokens=3))
    await engine.until_seen(1)
    await harness.client.post(f"{engine.url}/abort_requests", json={"request_ids": []})
    choice = (await asking).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Hel", "length")
    assert len(engine.seen) == 1


async def test_a_call_whose_place_was_given_up_moves_on(harness, engine, second):
    engine.script = partial_until_abort(engine, "never")
    asking = asyncio.create_task(harness.say([user("a")]))
    await engine.until_seen(1)
    await harness.route(second, incarnation=1)  # the cell came back as another process; the old one says nothing
    await asyncio.wait_for(harness.heard.wait(), 20)
    await harness.route(second, incarnation=1)
    assert (await asking)["content"] == "ok"


async def test_a_client_that_leaves_stops_the_engine_and_an_equal_request_resumes(harness, engine):
    engine.script = partial_until_abort(engine, "Hel")
    with pytest.raises(httpx.ReadTimeout):
        await harness.client.post(f"{harness.base}/chat/completions", json=body("a"), timeout=0.3)
    await until(lambda: live(harness) == [("kept", 3)])
    engine.script, engine.replies = engine.reply, ["lo"]
    assert (await harness.say([user("a")]))["content"] == "Hello"
    await delivered(harness, {0})
    assert len(read_calls(harness.journal).calls) == 1
    assert engine.seen[1]["token_ids"] == engine.seen[0]["token_ids"] + engine.encode("Hel")


async def test_an_answer_that_was_finished_meanwhile_is_given_to_the_retry(harness, engine):
    finish = asyncio.Event()

    async def natural_stop_wins(call: Running) -> dict[str, Any]:
        await call.aborted.wait()
        await finish.wait()
        return engine.part(engine.encode("whole<|im_end|>"), "stop")

    engine.script = natural_stop_wins
    for stream in (False, True):
        with pytest.raises(httpx.ReadTimeout):
            await harness.client.post(f"{harness.base}/chat/completions", json=body("a", stream=stream), timeout=0.3)
        await until(lambda: all(c["state"] == "kept" for c in harness.gateway._sessions["0-0"].live()))
    finish.set()
    await until(lambda: live(harness) == [])
    assert len(engine.seen) == 1, "the second request resumed the first one's call"
    assert (await harness.say([user("a")]))["content"] == "whole"
    await delivered(harness, {0})
    assert len(read_calls(harness.journal).calls) == 1
    assert len(list(rebuild(harness.journal).leaves())) == 1


async def test_an_undelivered_answer_is_kept_over_a_restart_and_not_trained(harness, make_harness, engine):
    engine.script = lambda call: aborted_but_done(engine, call)
    with pytest.raises(httpx.ReadTimeout):
        await harness.client.post(f"{harness.base}/chat/completions", json=body("a"), timeout=0.3)
    await until(lambda: live(harness) == [])
    await harness.gateway.stop()
    assert len(rebuild(harness.journal).withheld) == 1
    again = make_harness()
    await again.start()
    await again.route(engine)
    assert (await again.say([user("a")]))["content"] == "whole"
    assert len(engine.seen) == 1
    await delivered(again, {0})
    assert not rebuild(again.journal).withheld
    await again.stop()


async def test_an_answer_that_is_echoed_was_delivered(harness, engine):
    engine.script = lambda call: aborted_but_done(engine, call)
    with pytest.raises(httpx.ReadTimeout):
        await harness.client.post(f"{harness.base}/chat/completions", json=body("a"), timeout=0.3)
    await until(lambda: live(harness) == [])
    engine.script = engine.reply
    await harness.say([user("a"), {"role": "assistant", "content": "whole"}, user("b")])
    await delivered(harness, {0, 1})
    await harness.say([user("a")])
    assert len(engine.seen) == 3, "an answer that the harness has is not given twice"


async def test_equal_requests_at_once_are_calls_of_their_own(harness, engine):
    both = asyncio.Event()

    async def together(call: Running) -> dict[str, Any]:
        await both.wait()
        return engine.part(engine.encode(f"{len(engine.seen)}{call.body['sampling_params']['seed']}<|im_end|>"), "stop")

    engine.script = together
    asking = [asyncio.create_task(harness.say([user("a")])) for _ in range(2)]
    await engine.until_seen(2)
    both.set()
    texts = {(await a)["content"] for a in asking}
    assert len(texts) == 2
    tree = rebuild(harness.journal)
    leaves = list(tree.leaves())
    assert len(leaves) == 2
    assert len({tree.parents[leaf] for leaf in leaves}) == 1, "they share the rows of their common prompt"
    log = read_calls(harness.journal)
    assert all(conditioning(log)[0].tolist() == c["token_ids"] for c in engine.seen)


async def test_sealing_ends_live_calls_and_keeps_their_tokens_untrained(harness, engine):
    engine.script = partial_until_abort(engine, "Hel")
    asking = [asyncio.create_task(harness.ask([user("a")], stream=s)) for s in (False, True)]
    await engine.until_seen(2)
    sealed = await harness.gateway.seal("0-0")
    plain, stream = [await a for a in asking]
    assert plain.status_code == 409
    assert "execution_sealed" in stream.text
    assert "[DONE]" not in stream.text
    log = read_calls(harness.journal)
    assert [c.finish for c in log.calls] == ["abort", "abort"]
    assert (sealed.calls, sealed.delivered, log.sealed) == (2, 0, True)
    tree = rebuild(harness.journal)
    assert tree.withheld == set(tree.leaves())


async def test_sealing_ends_queued_calls(harness, engine):
    await harness.route(engine, home=7)
    asking = asyncio.create_task(harness.ask([user("a")]))
    await until(lambda: live(harness) == [("queued", 0)])
    await harness.gateway.seal("0-0")
    assert (await asking).status_code == 409
    assert not read_calls(harness.journal).calls


@pytest.mark.parametrize("stream", [False, True])
async def test_the_answer_waits_for_the_disk(harness, engine, monkeypatch, stream):
    gate, sync = threading.Event(), os.fsync
    monkeypatch.setattr("qwengyre.gateway.journal.os.fsync", lambda fd: gate.wait(20) and sync(fd))
    asking = asyncio.create_task(harness.ask([user("a")], stream=stream))
    await until(lambda: [state for state, _ in live(harness)] == ["done"])
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(asking), 0.1)
    gate.set()
    assert '"ok"' in (await asking).text


async def test_keep_alive_reaches_a_streaming_client(make_harness, engine):
    harness, release = make_harness(keepalive_s=0.02), asyncio.Event()
    await harness.start()
    await harness.route(engine)
    engine.script = lambda call: released(engine, call, release)
    chunks: list[dict[str, Any]] = []
    request = {"json": body("a", stream=True)}
    async with harness.client.stream("POST", f"{harness.base}/chat/completions", **request) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                chunks.append(orjson.loads(line[6:]))
            if len(chunks) == 4:
                release.set()
    empty = [c["choices"][0]["delta"] for c in chunks[1:4]]
    assert empty == [{}, {}, {}]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    await harness.stop()


async def test_keep_alive_reaches_a_client_that_does_not_stream(make_harness, engine):
    harness, release = make_harness(keepalive_s=0.02), asyncio.Event()
    await harness.start()
    await harness.route(engine)
    engine.script = lambda call: released(engine, call, release)
    received = b""
    async with harness.client.stream("POST", f"{harness.base}/chat/completions", json=body("a")) as answer:
        assert (answer.status_code, answer.headers["transfer-encoding"]) == (200, "chunked")
        async for part in answer.aiter_raw():
            received += part
            if received == b"   ":
                release.set()
    assert received.startswith(b"   ")
    assert orjson.loads(received)["choices"][0]["message"]["content"] == "ok"
    await harness.stop()


async def released(engine: ScriptedEngine, call: Running, release: asyncio.Event) -> dict[str, Any]:
    await release.wait()
    return await engine.reply(call)


async def aborted_but_done(engine: ScriptedEngine, call: Running) -> dict[str, Any]:
    await call.aborted.wait()
    return engine.part(engine.encode("whole<|im_end|>"), "stop")


def body(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [user(text)], **fields}


def live(harness: Harness) -> list[tuple[str, int]]:
    return [(c["state"], c["tokens"]) for c in harness.gateway._sessions["0-0"].live()]
