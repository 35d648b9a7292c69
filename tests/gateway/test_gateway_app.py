"""Identity, limits, sealing, restarts: the gateway as harnesses and its actor see it."""

import asyncio
import socket
from pathlib import Path

import httpx
import pytest
from gateway_doubles import Harness, ScriptedEngine, conditioning, delivered, system, user
from starlette.applications import Starlette

from qwengyre.errors import MachineError
from qwengyre.gateway.journal import read_calls, rebuild
from qwengyre.gateway.serve import Server
from qwengyre.types import Place, Routes


async def test_the_path_token_wins_over_the_key_and_both_are_accepted(harness, engine):
    await harness.gateway.open("0-1", "token-of-0-1")
    body = {"model": "m", "messages": [user("hi")]}
    key = {"authorization": "Bearer token-of-0-1"}
    by_key = await harness.client.post(f"{harness.url}/v1/chat/completions", json=body, headers=key)
    by_path = await harness.client.post(f"{harness.base}/chat/completions", json=body, headers=key)
    assert (by_key.status_code, by_path.status_code) == (200, 200)
    assert [call["handle"] for call in engine.seen] == ["0-1", "0-0"]


@pytest.mark.parametrize("token", ["-", "wrong", "token-of-0-", "token-of-0-00", "é"])
async def test_an_unknown_token_is_401_and_makes_nothing(harness, engine, token):
    body = {"model": "m", "messages": [user("hi")]}
    headers = {"authorization": f"Bearer {token}".encode()}
    answer = await harness.client.post(f"{harness.url}/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert not engine.seen
    assert len(list(harness.folder.glob("calls/*"))) == 1


async def test_models_are_listed_for_a_known_token_only(harness):
    listed = (await harness.client.get(f"{harness.base}/models")).json()
    assert [m["id"] for m in listed["data"]] == ["tiny"]
    assert (await harness.client.get(f"{harness.base}/models/tiny")).json()["id"] == "tiny"
    assert (await harness.client.get(f"{harness.url}/v1/models")).status_code == 401


async def test_other_paths_are_404_in_the_protocols_shape(harness):
    answer = await harness.client.post(f"{harness.base}/embeddings", json={})
    assert answer.status_code == 404
    assert "/v1/chat/completions" in answer.json()["error"]["message"]


async def test_a_body_over_the_limit_is_413(make_harness):
    harness = make_harness(body_limit_mb=1)
    await harness.start()
    answer = await harness.ask([user("x" * 2**20)])
    assert answer.status_code == 413
    assert "body_limit_mb=1" in answer.json()["error"]["message"]
    await harness.stop()


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [user("x")], "max_tokens": 0}, "max_tokens"),
        ({"messages": [user("x")], "max_tokens": "many"}, "max_tokens"),
        ({"messages": [user("x")], "n": 2}, "n"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages[0].content"),
        ({"messages": [user("x")], "tools": [{"type": "web_search"}]}, "tools"),
        ({"messages": [user("x")], "response_format": "json"}, "response_format"),
    ],
)
async def test_a_bad_request_is_400_and_names_the_field(harness, fields, named):
    answer = await harness.client.post(f"{harness.base}/chat/completions", json=fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == named


async def test_a_body_that_is_not_json_is_400(harness):
    answer = await harness.client.post(f"{harness.base}/chat/completions", content=b"{")
    assert answer.status_code == 400


async def test_too_long_is_openais_own_error_also_for_a_stream(make_harness, engine):
    harness = make_harness(window=64)
    await harness.start()
    await harness.route(engine)
    for stream in (False, True):
        answer = await harness.ask([user("x" * 64)], stream=stream)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert "maximum context length is 64 tokens" in error["message"]
    assert not engine.seen
    await harness.stop()


async def test_max_tokens_is_the_least_of_request_config_and_window(make_harness, engine):
    harness = make_harness(window=100)
    await harness.start()
    await harness.route(engine)
    await harness.ask([user("x")], max_tokens=7)
    await harness.ask([user("y")], max_tokens=10**6)
    await harness.ask([user("z")], max_completion_tokens=5, max_tokens=9)
    prompt = len(engine.seen[1]["token_ids"])
    assert [c["sampling_params"]["max_tokens"] for c in engine.seen] == [7, 100 - prompt, 5]
    await harness.stop()


async def test_sampling_is_ours_and_the_clients_wishes_are_recorded(harness, engine):
    await harness.ask([user("x")], temperature=0, top_p=0.1, logit_bias={"5": 1}, stop=["a"], seed=3)
    sampling = engine.seen[0]["sampling_params"]
    assert sampling["temperature"] == 0.8
    assert sampling["stop_token_ids"] == [256]
    assert set(sampling) == {"max_tokens", "temperature", "stop_token_ids", "seed", "logprobs"}
    call = read_calls(harness.journal).calls[0]
    assert call.temperature == 0.8
    assert call.request["ignored"]["temperature"] == 0
    assert call.request["ignored"]["logit_bias"] == {"5": 1}


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"response_format": {"type": "json_object"}},
    ],
)
async def test_a_constrained_call_is_not_trainable(harness, fields):
    await harness.ask([user("x")], **fields)
    await harness.ask([user("x")], tool_choice="auto", response_format={"type": "text"})
    await delivered(harness, {0, 1})
    assert [c.trainable for c in read_calls(harness.journal).calls] == [False, True]
    assert len(rebuild(harness.journal).withheld) == 1


async def test_a_sealed_execution_answers_409_and_sealing_is_idempotent(harness):
    await harness.say([user("a")])
    await harness.say([user("b")])
    sealed = await harness.gateway.seal("0-0")
    calls = read_calls(harness.journal)
    assert calls.sealed
    assert sealed == await harness.gateway.seal("0-0")
    assert (sealed.calls, sealed.delivered, sealed.tokens_out) == (2, 2, 6)
    assert sealed.tokens_in == sum(len(ids) for ids in conditioning(calls).values())
    assert (await harness.ask([user("c")])).status_code == 409
    await harness.gateway.open("0-0", harness.token)
    assert (await harness.ask([user("c")])).status_code == 409
    assert read_calls(harness.journal).size == harness.journal.stat().st_size


async def test_a_seal_survives_a_restart(harness, make_harness, engine):
    await harness.say([user("a")])
    sealed = await harness.gateway.seal("0-0")
    second = make_harness()
    await second.start()
    await second.route(engine)
    assert (await second.ask([user("c")])).status_code == 409
    assert await second.gateway.seal("0-0") == sealed
    await second.stop()


async def test_an_execution_without_calls_seals_to_zeros(harness):
    sealed = await harness.gateway.seal("0-0")
    assert (sealed.calls, sealed.delivered, sealed.tokens_in, sealed.tokens_out) == (0, 0, 0, 0)


async def test_a_restarted_gateway_goes_on_where_the_journal_ends(harness, make_harness, engine):
    talk = [system("s"), user("a")]
    engine.replies = ["one", "two", "three"]
    talk += [await harness.say(talk), user("b")]
    await harness.gateway.stop()
    second = make_harness()
    await second.start()
    await second.route(engine)
    talk += [await second.say(talk), user("c")]
    await second.say(talk)
    log = read_calls(second.journal)
    assert [c.match for c in log.calls] == ["root", "extend", "extend"]
    assert [c.call for c in log.calls] == [0, 1, 2]
    assert {n: ids.tolist() for n, ids in conditioning(log).items()} == dict(
        enumerate(call["token_ids"] for call in engine.seen)
    )
    assert len(list(rebuild(second.journal).leaves())) == 1
    await second.stop()


async def test_a_gateway_that_starts_again_knows_the_tokens_before_it_is_told(harness, make_harness, engine):
    await harness.say([user("a")])
    await harness.gateway.stop()
    second = make_harness()
    second.url = await second.gateway.start()
    asking = asyncio.create_task(second.say([user("a"), {"role": "assistant", "content": "ok"}, user("b")]))
    await second.route(engine)
    assert (await asking)["content"] == "ok"
    assert harness.token.encode() not in second.journal.read_bytes()
    await second.stop()


async def test_a_port_in_use_is_a_machine_error_that_names_it(make_harness):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(MachineError, match=f"gateway.port={port} on 127.0.0.1 is in use"):
            await make_harness(port=port).start()


async def test_an_answer_in_two_pieces_does_not_wait_for_an_acknowledgement():
    """Nagle's algorithm and a client's delayed acknowledgement are 40 ms a call."""
    server = Server(Starlette(), 0, None)
    async with httpx.AsyncClient(trust_env=False) as client:
        await client.get(f"{await server.start()}/health")
        assert server._server is not None
        (connection,) = server._server.server_state.connections
        assert connection.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    await server.stop()


async def test_the_unix_socket_serves_and_a_stale_one_is_replaced(make_harness, engine, tmp_path):
    path = tmp_path / "g.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    harness = make_harness(socket=path)
    await harness.start()
    await harness.route(engine)
    transport = httpx.AsyncHTTPTransport(uds=str(path))
    async with httpx.AsyncClient(transport=transport) as client:
        body = {"messages": [user("hi")]}
        answer = await client.post(f"http://x/x/{harness.token}/v1/chat/completions", json=body)
    assert answer.json()["choices"][0]["message"]["content"] == "ok"
    with pytest.raises(MachineError, match="served by another gateway"):
        await make_harness(socket=path).start()
    await harness.stop()
    assert not path.exists()


async def test_a_socket_path_that_is_too_long_is_a_machine_error(make_harness):
    with pytest.raises(MachineError, match="shorter run folder"):
        await make_harness(socket=Path("/tmp") / ("x" * 120)).start()


async def test_older_routes_are_ignored(harness, engine):
    newest = await harness.route(engine)
    assert await harness.gateway.route(Routes(newest - 1, {0: Place("http://127.0.0.1:9", 0)}, {"0-0": 0})) == newest
    assert (await harness.say([user("a")]))["content"] == "ok"


async def test_logs_never_hold_a_token(harness, engine, caplog):
    caplog.set_level("DEBUG")
    engine.script = lambda call: _raise()
    asking = asyncio.create_task(harness.ask([user("a")]))
    await asyncio.wait_for(harness.heard.wait(), 20)
    asking.cancel()
    assert "gave no answer" in caplog.text
    ours = [r.getMessage() for r in caplog.records if not r.name.startswith(("httpx", "httpcore"))]
    assert harness.token not in "\n".join(ours)


async def _raise():
    raise RuntimeError("the engine's own fault")


async def test_two_executions_share_nothing(harness: Harness, engine: ScriptedEngine):
    await harness.gateway.open("0-1", "other")
    await harness.say([user("a")])
    harness.token = "other"
    await harness.say([user("a")])
    assert engine.seen[0]["token_ids"] == engine.seen[1]["token_ids"]
    for name in ("0-0", "0-1"):
        assert [c.match for c in read_calls(harness.folder / "calls" / f"{name}.calls").calls] == ["root"]
