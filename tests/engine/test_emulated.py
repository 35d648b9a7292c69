"""The emulated engine: how much is said belongs to the execution, how fast to the load."""

import asyncio
from collections.abc import AsyncIterator, Callable

import numpy as np
import pytest

from qwengyre.engine.calls import Call, Completion, EngineClosedError
from qwengyre.engine.emulated import EmulatedEngine, Speed
from qwengyre.errors import EngineError

EOS = 258
FAST = {"time_scale": 50.0, "tokens_per_s": 100.0}


@pytest.fixture
async def make() -> AsyncIterator[Callable[..., EmulatedEngine]]:
    made = list[EmulatedEngine]()

    def one(**speed: object) -> EmulatedEngine:
        engine = EmulatedEngine(name="cell0.0", eos_ids=(EOS,), window=2000, version=3, **FAST | speed)  # type: ignore[arg-type]
        made.append(engine)
        return engine

    yield one
    for engine in made:
        await engine.stop()


def call(handle: str, budget: int = 256, prompt: int = 10, request: str = "") -> Call:
    return Call(request or handle, np.arange(prompt, dtype=np.int32), budget, seed=1, handle=handle)


async def said(engine: EmulatedEngine, *calls: Call) -> list[Completion]:
    await engine.start()
    await engine.open()
    return list(await asyncio.gather(*(engine.generate(one) for one in calls)))


async def test_how_much_an_execution_says_is_its_own_and_its_groups(make: Callable[..., EmulatedEngine]) -> None:
    names = [f"{group}-{member}" for group in range(20) for member in range(4)]
    first = await said(make(sigma_within=0.2, sigma_group=0.5), *(call(name) for name in names))
    again = await said(make(sigma_within=0.2, sigma_group=0.5), *(call(name) for name in reversed(names)))
    lengths = np.array([len(one.token_ids) for one in first], float)
    assert lengths.tolist() == [len(one.token_ids) for one in reversed(again)]
    groups = np.log(lengths).reshape(20, 4)
    assert groups.mean(axis=1).std() > 2 * groups.std(axis=1).mean()
    assert {(int(one.token_ids[-1]), one.finish_reason) for one in first} == {(EOS, "stop")}


async def test_an_interrupted_call_says_as_much_in_the_end(make: Callable[..., EmulatedEngine]) -> None:
    engine = make(tokens_per_s=4.0)
    (whole,) = await said(engine, call("0-0"))
    running = asyncio.create_task(engine.generate(call("0-0")))
    before = (await engine.stats())["decode_tokens"]
    while (await engine.stats())["decode_tokens"] < before + 3:
        await asyncio.sleep(0.002)
    assert await engine.abort() == 1
    part = await running
    assert (part.finish_reason, part.stop_reason) == ("abort", None)
    assert 3 <= len(part.token_ids) < len(whole.token_ids)
    rest = await engine.generate(call("0-0", 256 - len(part.token_ids), 10 + len(part.token_ids), "rest"))
    assert len(part.token_ids) + len(rest.token_ids) == len(whole.token_ids)
    assert rest.finish_reason == "stop"


def test_calls_that_decode_together_slow_each_other_down() -> None:
    speed = Speed(tokens_per_s=10.0, alpha=0.5, time_scale=3.0)
    assert [speed.rate(n) for n in (0, 1, 2, 5)] == [30.0, 30.0, 20.0, 10.0]


async def test_a_call_over_its_budget_ends_by_its_length(make: Callable[..., EmulatedEngine]) -> None:
    (one,) = await said(make(median=1.0, sigma_within=0.0, sigma_group=0.0, max_tokens=64), call("0-0", 64))
    assert (len(one.token_ids), one.finish_reason) == (64, "stop")
    (cut,) = await said(make(median=0.5, sigma_within=0.0, sigma_group=0.0, max_tokens=20), call("0-0", 64))
    assert len(cut.token_ids) == 10


async def test_closed_it_takes_nothing_and_unknown_arguments_are_refused(make: Callable[..., EmulatedEngine]) -> None:
    engine = make()
    await engine.start()
    with pytest.raises(EngineClosedError):
        await engine.generate(call("0-0"))
    with pytest.raises(EngineError, match="tokens_per_second"):
        make(tokens_per_second=3.0)
