"""The engine in its thread: shared weights, versions, sleep, failure, cancellation."""

import asyncio

import httpx
import numpy as np
import pytest
import torch
from transformers import GraniteConfig, GraniteForCausalLM

from qwengyre.engine.calls import Call, EngineClosedError, RefusedCallError
from qwengyre.engine.embedded import EmbeddedEngine
from qwengyre.errors import EngineError


@pytest.fixture
async def engine(one_model):
    engine = EmbeddedEngine(one_model, name="cell0.1", eos_ids=[], window=1024, version=3)
    await engine.start()
    await engine.open()
    yield engine
    await engine.stop()


def call(name="a", length=20, max_tokens=10, **options):
    return Call(name, np.arange(5, 5 + length, dtype=np.int32) % 263, max_tokens, **options)


async def first_token(engine):
    """Wait until all of a few calls decode: the torch thread answers jobs between two passes only."""
    while (await engine.stats())["decode_tokens"] < 20:
        await engine.abort(["nobody"])


async def test_an_optimizer_step_in_place_takes_effect_at_load(engine, one_model, reference):
    before = await engine.generate(call())
    optimizer = torch.optim.AdamW(one_model.parameters(), lr=3e-2)
    one_model(torch.arange(5, 25)[None], labels=torch.arange(5, 25)[None]).loss.backward()
    optimizer.step()
    await engine.load(4)
    after = await engine.generate(call("b"))
    want = reference(one_model, range(5, 25), after.token_ids).numpy()
    np.testing.assert_allclose(after.logprobs, want, atol=1e-4)
    stale = reference(one_model, range(5, 25), before.token_ids).numpy()
    assert np.abs(before.logprobs - stale).max() > 0.01
    assert (before.spans[0].version, after.spans[0].version) == (3, 4)


@pytest.mark.parametrize("form", ["mapping", "function"])
async def test_weights_given_in_mid_call_split_it_in_two_exact_spans(engine, one_model, reference, form):
    old = {name: parameter.detach().clone() for name, parameter in one_model.named_parameters()}
    new = {name: tensor * 1.1 for name, tensor in old.items()}

    def update():
        with torch.no_grad():
            for name, parameter in one_model.named_parameters():
                parameter.copy_(new[name])

    calls = [asyncio.create_task(engine.generate(call(f"c{i}", max_tokens=400))) for i in range(3)]
    await first_token(engine)
    await engine.load(7, new if form == "mapping" else update)
    for got in await asyncio.gather(*calls):
        (v0, _, cut, _), (v1, _, end, _) = got.spans
        assert (v0, v1, end) == (3, 7, 400)
        new_part = reference(one_model, range(5, 25), got.token_ids).numpy()[cut:]
        np.testing.assert_allclose(got.logprobs[cut:], new_part, atol=1e-4)
    assert (await engine.stats())["aborted"] == 0


async def test_wrong_weights_change_nothing(engine, one_model):
    before = {name: parameter.clone() for name, parameter in one_model.named_parameters()}
    name = next(iter(before))
    with pytest.raises(EngineError, match="nothing was loaded"):
        await engine.load(9, {name: before[name] * 2, "model.nothing": torch.zeros(1)})
    assert all(torch.equal(before[name], parameter) for name, parameter in one_model.named_parameters())
    assert (await engine.generate(call())).spans[0].version == 3


async def test_cancelling_the_caller_ends_the_call(engine):
    task = asyncio.create_task(engine.generate(call(max_tokens=900)))
    await first_token(engine)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await engine.abort(["nobody"])
    assert await engine.calls() == 0
    assert (await engine.stats())["aborted"] == 1
    assert (await engine.generate(call())).finish_reason == "length"


async def test_abort_while_open_then_calls_is_zero_at_once(engine):
    tasks = [asyncio.create_task(engine.generate(call(f"c{i}", max_tokens=900))) for i in range(5)]
    await first_token(engine)
    assert await engine.calls() == 5
    assert await engine.abort() == 5
    assert await engine.calls() == 0
    assert {got.finish_reason for got in await asyncio.gather(*tasks)} == {"abort"}


async def test_sleep_frees_and_refuses_while_calls_run(engine):
    task = asyncio.create_task(engine.generate(call(max_tokens=900)))
    await first_token(engine)
    with pytest.raises(EngineError, match="cannot sleep"):
        await engine.sleep()
    await engine.close()
    with pytest.raises(EngineError, match="1 calls"):
        await engine.sleep()
    await engine.abort()
    await task
    assert (await engine.stats())["kv_tokens"] > 0
    await engine.sleep()
    assert (await engine.stats())["kv_tokens"] == 0
    await engine.wake()
    with pytest.raises(EngineError, match="load a version"):
        await engine.open()
    await engine.load(4)
    await engine.open()
    assert (await engine.generate(call())).spans[0].version == 4


async def test_refusals_of_calls(engine):
    for wrong, kind in (
        (call(length=1000, max_tokens=25), "too_long"),
        (call(max_tokens=0), "invalid"),
        (call(temperature=-1.0), "invalid"),
        (call(temperature=1e-30), "invalid"),
        (call(temperature=float("inf")), "invalid"),
        (call(temperature=float("nan")), "invalid"),
        (Call("x", np.array([263], np.int32), 4), "invalid"),
        (Call("x", np.array([-1], np.int32), 4), "invalid"),
        (Call("x", np.array([], np.int32), 4), "invalid"),
    ):
        with pytest.raises(RefusedCallError) as refusal:
            await engine.generate(wrong)
        assert refusal.value.kind == kind
    task = asyncio.create_task(engine.generate(call("same", max_tokens=900)))
    await first_token(engine)
    with pytest.raises(RefusedCallError, match="running already"):
        await engine.generate(call("same"))
    await engine.abort()
    await task
    assert (await engine.generate(call(length=1000, max_tokens=24))).finish_reason == "length"


async def test_eos_ids_stop_every_call(one_model):
    engine = EmbeddedEngine(one_model, name="e", eos_ids=range(263), window=64)
    await engine.start()
    await engine.open()
    got = await engine.generate(call())
    assert (got.finish_reason, len(got.token_ids)) == ("stop", 1)
    await engine.stop()


async def test_calls_without_a_seed_differ_and_a_run_repeats_with_its_seed(one_model):
    seen = []
    for seed in (1, 1, 2):
        engine = EmbeddedEngine(one_model, name="e", eos_ids=[], window=64, seed=seed)
        await engine.start()
        await engine.open()
        seen.append([(await engine.generate(call(name))).token_ids.tolist() for name in "ab"])
        await engine.stop()
    assert seen[0] == seen[1] != seen[2]
    assert seen[0][0] != seen[0][1]


async def test_capacity(one_model):
    options = {"name": "e", "eos_ids": [], "window": 100}
    assert await EmbeddedEngine(one_model, **options, executions=5).capacity() == 5
    assert await EmbeddedEngine(one_model, **options, max_batch=8, kv_tokens=350).capacity() == 3
    assert await EmbeddedEngine(one_model, **options, max_batch=8, kv_tokens=3500).capacity() == 8
    with pytest.raises(ValueError, match="window of 100"):
        EmbeddedEngine(one_model, **options, kv_tokens=99)


async def test_a_failure_in_the_torch_thread_answers_every_call(engine, one_model):
    url = await engine.start()
    body = {"token_ids": [5, 6], "sampling_params": {"max_tokens": 900}}
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        posts = [
            asyncio.create_task(client.post("/inference/v1/generate", json={**body, "request_id": str(i)}))
            for i in range(3)
        ]
        await first_token(engine)
        embedding = one_model.get_input_embeddings()
        embedding.weight.data = torch.empty(0)  # every later pass raises
        for answer in await asyncio.gather(*posts):
            assert (answer.status_code, answer.json()["error"]["type"]) == (500, "engine")
        health = await client.get("/health")
        assert health.status_code == 500
        assert health.json()["status"].startswith("failed: ")
        late = await client.post("/inference/v1/generate", json={**body, "request_id": "late"})
        assert late.status_code == 500
    assert await engine.calls() == 0
    assert await engine.abort() == 0
    with pytest.raises(EngineError, match="serves no more"):
        await engine.load(5)


async def test_nobody_waits_for_a_torch_thread_that_is_gone(engine):
    engine._jobs.put(lambda batch: 1 / 0)
    waiting = (engine.load(4), engine.generate(call()), engine.load(5))
    for error in await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 20):
        assert isinstance(error, EngineError)
        assert "ZeroDivisionError" in str(error)
    assert engine.health().status == "failed: ZeroDivisionError: division by zero"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_broken_weights_are_named(engine, one_model, temperature):
    with torch.no_grad():
        one_model.lm_head.weight.fill_(float("nan"))
    await engine.load(4)
    with pytest.raises(EngineError, match="version 4 is not finite"):
        await engine.generate(call(temperature=temperature))


async def test_a_model_that_is_not_reproduced_fails_the_start():
    config = GraniteConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    config.logits_scaling = 2.0
    engine = EmbeddedEngine(GraniteForCausalLM(config), name="e", eos_ids=[], window=64)
    with pytest.raises(EngineError, match="does not reproduce"):
        await engine.start()
    await engine.stop()


async def test_closed_before_start_and_after_stop(one_model):
    engine = EmbeddedEngine(one_model, name="e", eos_ids=[], window=64)
    with pytest.raises(EngineError, match="not started"):
        await engine.generate(call())
    await engine.start()
    with pytest.raises(EngineClosedError):
        await engine.generate(call())
    await engine.stop()
    await engine.stop()
    with pytest.raises(EngineError, match="not started"):
        await engine.open()
