"""The HTTP surface over an engine that is a dozen lines: what it parses, answers, and leaves alone."""

import asyncio
import signal
import socket
import threading
import zlib

import httpx
import numpy as np
import orjson
import pytest

from qwengyre.engine.calls import Call, Completion, EngineClosedError, Health, RefusedCallError, Span
from qwengyre.engine.prefixes import Prefixes
from qwengyre.engine.server import EngineServer, build_app, read_call, write_completion
from qwengyre.errors import EngineError


class Echo:
    """Answers at once; `hold` calls wait until they are cancelled, which sets `freed`."""

    def __init__(self):
        self.freed = asyncio.Event()
        self.held = asyncio.Event()
        self.done = []

    async def generate(self, call):
        if call.handle == "closed":
            raise EngineClosedError("closed for now")
        if call.handle == "broken":
            raise EngineError("it broke")
        if call.handle == "hold":
            self.held.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.freed.set()
        ids = call.token_ids[: call.max_tokens]
        return Completion(call.request_id, ids, -ids.astype(np.float32), "length", None, (Span(4, 0, len(ids)),))

    async def abort(self, request_ids=None):
        return -1 if request_ids is None else len(request_ids)

    async def open(self):
        self.done.append("open")

    async def close(self):
        self.done.append("close")

    async def sleep(self):
        raise EngineError("calls are running")

    async def wake(self):
        self.done.append("wake")

    def health(self):
        return Health("open", "echo", 4, 2, 99)


BODY = {"request_id": "r", "token_ids": [7, 8, 9], "sampling_params": {"max_tokens": 2}}


@pytest.fixture
async def echo():
    return Echo()


@pytest.fixture
async def client(echo):
    server = EngineServer(build_app(echo, "echo"))
    url = await server.start()
    assert await server.start() == url
    async with httpx.AsyncClient(base_url=url, timeout=10) as client:
        yield client
    await server.stop()
    await server.stop()


async def test_a_call_and_its_answer(client):
    answer = await client.post("/inference/v1/generate", json=BODY)
    assert answer.status_code == 200
    assert answer.json() == {
        "request_id": "r",
        "engine": "echo",
        "choices": [
            {
                "index": 0,
                "token_ids": [7, 8],
                "finish_reason": "length",
                "stop_reason": None,
                "logprobs": {"content": [{"token_id": 7, "logprob": -7.0}, {"token_id": 8, "logprob": -8.0}]},
                "weight_versions": [{"version": "4", "start": 0, "end": 2}],
            }
        ],
        "kept": True,
    }


async def test_a_prefix_is_named_instead_of_sent(client, echo):
    first = await client.post("/inference/v1/generate", json=BODY)
    ids = np.array(BODY["token_ids"] + first.json()["choices"][0]["token_ids"], np.int32)
    for length, new in ((5, [1]), (4, [1, 2])):
        prefix = {"request_id": "r", "length": length, "crc": zlib.crc32(ids[:length].data)}
        named = {**BODY, "request_id": "s", "token_ids": new, "prefix": prefix}
        answer = await client.post("/inference/v1/generate", json=named)
        if length == 5:
            assert answer.json()["choices"][0]["token_ids"] == [*ids[:2].tolist()]
    assert answer.json()["error"]["type"] == "unknown_prefix"  # "r" was wholly part of "s", which took its place
    for wrong in ({"crc": 1}, {"length": 9}, {"request_id": "x"}):
        prefix = {"request_id": "s", "length": 6, "crc": zlib.crc32(np.append(ids, np.int32(1)).data)}
        named = {**BODY, "request_id": "t", "token_ids": [], "prefix": prefix | wrong}
        assert (await client.post("/inference/v1/generate", json=named)).json()["error"]["type"] == "unknown_prefix"
    assert (await client.post("/inference/v1/generate", json={**named, "prefix": prefix})).status_code == 200
    broken = await client.post("/inference/v1/generate", json={**BODY, "prefix": {"length": 3}})
    assert broken.json()["error"]["type"] == "invalid"


def test_the_kept_prefixes_are_bounded():
    kept = Prefixes(most=10)
    for name in "abc":
        call = Call(name, np.arange(4, dtype=np.int32), 1)
        done = Completion(name, np.array([9], np.int32), np.zeros(1, np.float32), "stop", 9, ())
        assert kept.keep(call, done, "")
    crc = zlib.crc32(np.arange(4, dtype=np.int32).data)
    with pytest.raises(RefusedCallError):
        kept.find({"request_id": "a", "length": 4, "crc": crc})
    assert kept.find({"request_id": "b", "length": 4, "crc": crc}).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("handle", "status", "kind"), [("closed", 409, "closed"), ("broken", 500, "engine"), ("", 200, None)]
)
async def test_how_an_engine_says_no(client, handle, status, kind):
    answer = await client.post("/inference/v1/generate", json={**BODY, "handle": handle})
    assert answer.status_code == status
    assert kind is None or answer.json()["error"]["type"] == kind


@pytest.mark.parametrize(
    "change",
    [
        {"token_ids": []},
        {"token_ids": [[1]]},
        {"token_ids": [1.5]},
        {"token_ids": "no"},
        {"token_ids": None},
        {"token_ids": [2**40]},
        {"token_ids": [True]},
        {"sampling_params": None},
        {"sampling_params": {"max_tokens": "many"}},
        {"sampling_params": {"max_tokens": 1, "stop_token_ids": ["x"]}},
        {"sampling_params": 3},
    ],
)
async def test_bad_input_is_400(client, change):
    answer = await client.post("/inference/v1/generate", json={**BODY, **change})
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"3", b'{"token_ids": [1], "sampling_params": {"max_tokens": 1}}'])
async def test_bodies_that_are_no_request(client, body):
    answer = await client.post("/inference/v1/generate", content=body)
    assert answer.status_code == 400
    bad = await client.post("/abort_requests", content=b"[1]")
    assert bad.status_code == 400


def test_the_exact_float_survives_json():
    ids, logprobs = np.array([1], np.int32), np.array([-0.1], np.float32)
    body = write_completion(Completion("r", ids, logprobs, "stop", 1, ()), "e")
    [pair] = body["choices"][0]["logprobs"]["content"]
    assert np.float32(pair["logprob"]) == logprobs[0]


def test_all_fields_are_read():
    call, _ = read_call(
        b'{"request_id":"a","token_ids":[1,2],"handle":"3-1","sampling_params":'
        b'{"max_tokens":5,"temperature":0.5,"stop_token_ids":[9],"seed":3,"logprobs":0}}',
        Prefixes(),
    )
    assert (call.request_id, call.handle, call.max_tokens, call.temperature) == ("a", "3-1", 5, 0.5)
    assert (call.stop_token_ids, call.seed, call.token_ids.tolist()) == ((9,), 3, [1, 2])
    assert call.token_ids.dtype == np.int32


async def test_commands(client, echo):
    for path in ("/pause", "/resume", "/wake_up"):
        answer = await client.post(path)
        assert (answer.status_code, answer.json()) == (200, {})
    assert echo.done == ["close", "open", "wake"]
    refused = await client.post("/sleep")
    assert (refused.status_code, refused.json()["error"]["message"]) == (409, "calls are running")
    assert (await client.post("/abort_requests", json={"request_ids": ["a", "b"]})).json() == {"aborted": 2}
    for everything in ({}, {"request_ids": []}):
        assert (await client.post("/abort_requests", json=everything)).json() == {"aborted": -1}
    health = (await client.get("/health")).json()
    assert health == {"status": "open", "engine": "echo", "version": "4", "calls": 2, "window": 99}


async def test_a_client_that_disconnects_cancels_its_call(client, echo):
    request = asyncio.create_task(client.post("/inference/v1/generate", json={**BODY, "handle": "hold"}))
    await echo.held.wait()
    request.cancel()
    await asyncio.wait_for(echo.freed.wait(), 10)


async def test_stop_frees_the_port_and_a_taken_port_is_an_error():
    server = EngineServer(build_app(Echo(), "echo"))
    port = int((await server.start()).rpartition(":")[2])
    with pytest.raises(OSError, match="in use"):
        await EngineServer(build_app(Echo(), "echo"), port).start()
    await server.stop()
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))


async def test_an_answer_in_two_pieces_does_not_wait_for_an_acknowledgement():
    """Nagle's algorithm and a client's delayed acknowledgement are 40 ms a call."""
    server = EngineServer(build_app(Echo(), "echo"))
    async with httpx.AsyncClient(trust_env=False) as client:
        await client.get(f"{await server.start()}/health")
        assert server._server is not None
        (connection,) = server._server.server_state.connections
        assert connection.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    await server.stop()


async def test_signal_handlers_stay_the_callers():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    server = EngineServer(build_app(Echo(), "echo"))
    await server.start()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    await server.stop()


def test_it_serves_in_a_loop_of_another_thread():
    seen = []

    async def serve():
        server = EngineServer(build_app(Echo(), "echo"))
        async with httpx.AsyncClient(base_url=await server.start()) as client:
            seen.append((await client.get("/health")).status_code)
        await server.stop()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    thread.join()
    assert seen == [200]


def test_a_refusal_names_its_kind():
    with pytest.raises(RefusedCallError, match="lacks 'token_ids'") as refusal:
        read_call(b'{"request_id": "a", "sampling_params": {"max_tokens": 1}}', Prefixes())
    assert refusal.value.kind == "invalid"


async def test_tokens_are_streamed_as_they_are_sampled(tmp_path):
    import torch
    from engine_cases import qwen3

    from qwengyre.engine.embedded import EmbeddedEngine

    torch.set_num_threads(1)
    engine = EmbeddedEngine(qwen3(), name="cell0.0", eos_ids=[], window=256)
    url = await engine.start()
    body = {"request_id": "r", "token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 40}, "stream": True}
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        closed = await client.post("/inference/v1/generate", json=body)
        assert (closed.status_code, closed.json()["error"]["type"]) == (409, "closed")
        await engine.open()
        answer = await client.post("/inference/v1/generate", json=body)
        lines = [orjson.loads(line) for line in answer.content.splitlines()]
    assert [i for line in lines[:-1] for i in line["token_ids"]] == lines[-1]["choices"][0]["token_ids"]
    assert lines[-1]["kept"] is True
    await engine.stop()
