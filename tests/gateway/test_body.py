"""Bodies: bounded before they are read, decompressed within bounds, parsed only where they are new."""

import asyncio
import gzip
import json
import random
import tracemalloc
import zlib
from typing import Any

import pytest
import zstandard
from gateway_doubles import Harness, ScriptedEngine, user

from qwengyre.gateway.body import Bodies, read
from qwengyre.gateway.canon import Refusal, Request
from qwengyre.gateway.dialects.anthropic import Anthropic
from qwengyre.gateway.dialects.base import Dialect, Json, Known
from qwengyre.gateway.dialects.chat import Chat
from qwengyre.gateway.dialects.responses import Responses


@pytest.mark.parametrize("coding", ["gzip", "zstd", "deflate", "identity", "gzip, zstd"])
async def test_compressed_bodies(harness: Harness, engine: ScriptedEngine, coding: str):
    body = json.dumps({"messages": [user("é" * 100)]}).encode()
    pack = {"gzip": gzip.compress, "zstd": zstandard.compress, "deflate": zlib.compress, "identity": bytes}
    for name in coding.split(", "):
        body = pack[name](body)
    headers = {"content-encoding": coding, "content-type": "application/json"}
    answer = await harness.client.post(f"{harness.base}/chat/completions", content=body, headers=headers)
    assert answer.status_code == 200


@pytest.mark.parametrize("coding", ["gzip", "zstd", "br"])
async def test_what_cannot_be_decompressed_is_the_clients_mistake(harness: Harness, coding: str):
    answer = await harness.client.post(
        f"{harness.base}/chat/completions", content=b"nonsense", headers={"content-encoding": coding}
    )
    assert answer.status_code == 400
    assert "content-encoding" in answer.json()["error"]["message"]


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
async def test_a_small_body_that_grows_over_the_limit(make_harness: Any, pack: Any):
    harness = make_harness(body_limit_mb=1)
    await harness.start()
    coding = "gzip" if pack is gzip.compress else "zstd"
    answer = await harness.client.post(
        f"{harness.base}/chat/completions", content=pack(b" " * 2**21), headers={"content-encoding": coding}
    )
    assert answer.status_code == 413
    assert "gateway.body_limit_mb=1" in answer.json()["error"]["message"]
    await harness.stop()


@pytest.mark.parametrize("path", ["chat/completions", "messages"])
async def test_a_body_over_the_limit_is_refused_before_it_is_read(make_harness: Any, path: str):
    harness = make_harness(body_limit_mb=1)
    await harness.start()
    host, port = harness.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /x/{harness.token}/v1/{path} HTTP/1.1\r\nhost: x\r\ncontent-length: {2**21}\r\n\r\n"
    writer.write(head.encode())  # not a byte of the body
    answer = await asyncio.wait_for(reader.read(), 20)
    assert answer.startswith(b"HTTP/1.1 413")
    assert (b'"request_too_large"' in answer) == (path == "messages")
    writer.close()
    await harness.stop()


async def test_a_body_that_says_no_length_is_counted():
    async def parts():
        for _ in range(3):
            yield b"x" * 100

    got = list[bytes]()
    with pytest.raises(Refusal) as refused:
        await read({}, parts(), 250, got.append)
    assert refused.value.kind == "too_large"
    await read({}, parts(), 300, got.append)
    assert b"".join(got[2:]) == b"x" * 300


# The fast path: whatever bodies come in whatever order, it decodes to what a whole parse decodes to.


class Counting:
    """A dialect that counts the items that it is given."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect, self.array, self.items = dialect, dialect.array, 0

    def decode(self, wire: Json, known: Known) -> Request:
        self.items = len(wire[self.array])
        return self.dialect.decode(wire, known)


def chat_item(n: int, kind: int) -> Json:
    text = f'say "{n}", {{[\\ é ' + "z" * 300
    if kind == 0:
        return {"role": "user", "content": [{"type": "text", "text": text}]}
    if kind == 1:
        call = {"id": f"c{n}", "type": "function", "function": {"name": "f", "arguments": '{"a": "]}"}'}}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    return {"role": "tool", "tool_call_id": f"c{n}", "content": text}


def anthropic_item(n: int, kind: int) -> Json:
    text = {"type": "text", "text": f'"messages":[ {n} ' + "y" * 300}
    if kind == 0:
        return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"c{n}", "content": [text]}, text]}
    return {"role": ("assistant", "user")[kind - 1], "content": [text]}


def response_item(n: int, kind: int) -> Json:
    if kind == 0:
        return {"type": "function_call", "call_id": f"c{n}", "name": "f", "arguments": '{"x": "' + "w" * 300 + '"}'}
    if kind == 1:
        return {"type": "reasoning", "summary": [{"type": "summary_text", "text": f"{n}" + "v" * 300}]}
    return {"type": "message", "role": ("user", "assistant")[n % 2], "content": f"{n} [" + "u" * 300}


CASES: list[Any] = [(Chat(), chat_item), (Anthropic(), anthropic_item), (Responses(), response_item)]


def arrived(bodies: Bodies, body: bytes, dialect: Any, rng: random.Random) -> Request:
    """In parts of any length, sometimes while another body is on its way that is given up."""
    with bodies.arrival(dialect) as given_up, bodies.arrival(dialect) as arriving:
        at = 0
        while at < len(body):
            size = rng.choice((7, 300, 5000, 65536))
            arriving.feed(body[at : at + size])
            given_up.feed(body[at : at + size])
            at += size
        request = arriving.request()
        other = given_up.request() if rng.random() < 0.3 else request
        assert other.messages == request.messages
        return request


@pytest.mark.parametrize(("dialect", "item"), CASES)
@pytest.mark.parametrize("spaced", [False, True])
def test_the_fast_path_is_a_whole_parse(dialect: Dialect, item: Any, spaced: bool):
    rng = random.Random(3)
    bodies, talk = Bodies(), [item(n, rng.randrange(3)) for n in range(40)]
    counting: Any = Counting(dialect)
    saved = 0
    for turn in range(150):
        move = rng.random()
        if move < 0.6:
            talk = [*talk, *(item(100 + turn * 3 + k, rng.randrange(3)) for k in range(rng.randrange(1, 4)))]
        elif move < 0.75:
            talk = talk[: rng.randrange(20, len(talk) + 1)]
        elif move < 0.9:
            at = rng.randrange(len(talk))
            talk = [*talk[:at], item(10_000 + turn, rng.randrange(3)), *talk[at + 1 :]]
        wire: Json = {"model": "m", dialect.array: talk, "tools": [], "max_tokens": turn + 1}
        if move > 0.95:  # another order, and a list of the same name that is not the one
            wire = {"metadata": {dialect.array: [1, 2]}, **wire}
        body = json.dumps(wire, separators=None if spaced else (",", ":")).encode()
        expected = dialect.decode(json.loads(body), Known())
        got = arrived(bodies, body, counting, rng)
        assert (got.messages, got.max_tokens, got.tools) == (expected.messages, expected.max_tokens, expected.tools)
        saved += len(talk) - counting.items
    assert saved > 2000, "most items are not parsed again"


def test_errors_name_the_item_of_the_whole_list():
    bodies, talk = Bodies(), [chat_item(n, 0) for n in range(80)]
    bodies.decode(json.dumps({"messages": talk}).encode(), Chat())
    with pytest.raises(Refusal) as refused:
        bodies.decode(json.dumps({"messages": [*talk, {"role": "x"}]}).encode(), Chat())
    assert refused.value.param == "messages[80].role"


@pytest.mark.parametrize("body", [b"[]", b"{", b'"messages":[', b'{"messages":[' + b" " * 9000])
def test_what_is_no_object(body: bytes):
    with pytest.raises(Refusal):
        Bodies().decode(body, Chat())


def test_what_was_there_before_is_neither_kept_twice_nor_copied():
    bodies, talk = Bodies(), [chat_item(n, n % 3) for n in range(3000)]
    tracemalloc.start()
    try:
        bodies.decode(json.dumps({"messages": talk}).encode(), Chat())
        body = json.dumps({"messages": [*talk, chat_item(3000, 0)]}).encode()
        parts = [body[at : at + 2**16] for at in range(0, len(body), 2**16)]
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        with bodies.arrival(Chat()) as arriving:
            for part in parts:
                arriving.feed(part)
            assert len(arriving.request().messages) == 3001
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < len(body) / 4, "one more copy would be the whole body"
