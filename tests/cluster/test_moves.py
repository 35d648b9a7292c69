"""Moves of real cells under real calls, without Ray: what the harness sees, what is kept, what every failure leaves."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from stage import Stage, a_micro_step, lively_model, text_of

from qwengyre.errors import EngineError
from qwengyre.schedule import events as ev
from qwengyre.types import Ending, ExecutionId, ModelCall, Role

Make = Callable[..., Awaitable[Stage]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return lively_model(tmp_path_factory.mktemp("models") / "lively")


@pytest.fixture
async def make(tmp_path: Path, model: Path) -> AsyncIterator[Make]:
    stages: list[Stage] = []

    async def made(cells: int = 2, **settings: float) -> Stage:
        folder = tmp_path / str(len(stages))
        folder.mkdir()
        stages.append(await Stage(folder, model, cells, **settings).open())
        return stages[-1]

    yield made
    for stage in stages:
        await stage.close()
    for stage in stages:
        assert stage.failed == []


async def quiet(stage: Stage, tokens: int, *executions: str) -> list[str]:
    """What these executions answer when nothing moves."""
    for name in executions:
        await stage.begin(name, 1)
    return [text_of(answer) for answer in await asyncio.gather(*(stage.ask(n, n[2:], tokens) for n in executions))]


def started(stage: Stage, tokens: int, *executions: str) -> "list[asyncio.Task[dict]]":
    return [asyncio.create_task(stage.ask(n, n[2:], tokens)) for n in executions]


def same(one: ModelCall, other: ModelCall) -> bool:
    """The same tokens. False: up to a token where the two best are as good (another batch sums in another order)."""
    equal = one.output[: len(other.output)] == other.output[: len(one.output)]
    if equal.all():
        assert len(one.output) == len(other.output)
        return True
    at = int(np.argmin(equal))
    assert abs(one.logprobs[at] - other.logprobs[at]) < 1e-4, f"other tokens from {at} on"
    return False


async def test_live_calls_continue_elsewhere_from_their_tokens(make: Make) -> None:
    """32 live calls on a leaving cell, all with partial output at the cut: the same text as without the move."""
    stage = await make()
    await quiet(stage, 160, *(f"1-{n}" for n in range(32)))
    expected = [(await stage.log(f"1-{n}")).calls[0] for n in range(32)]
    names = [f"0-{n}" for n in range(32)]
    for name in names:
        await stage.begin(name, 0)
    calls = started(stage, 160, *names)
    await stage.until(lambda stats: stats["calls"] == 32, 0)
    await stage.until_tokens(0, int((await stage.cells[0].target.stats())["decode_tokens"]) + 32 * 6)
    record = await stage.move(0, Role.TRAINING, **{f"x0_{n}": 1 for n in range(32)})
    await asyncio.gather(*calls)
    assert (record.outcome, record.failed, record.live) == ("training", "", 32)
    assert list(record.phases) == ["shut", "routes", "kv", "drain", "train"]
    assert stage.of(ev.Moved) == [ev.Moved(stage.events[-1].at, 0, Role.TRAINING)]
    logs = [await stage.log(name) for name in names]
    cut = [s for log in logs for call in log.calls for s in call.stretches if s.cause == "abort"]
    assert record.calls == 32
    assert record.tokens == sum(s.end - s.start for s in cut)
    assert len(cut) >= 24, "so many had partial output"
    assert sum(same(log.calls[0], before) for log, before in zip(logs, expected, strict=True)) >= 30
    assert {s.engine for s in cut} == {"cell0.0"}
    for log in logs:
        assert len(log.calls) == 1
        assert log.calls[0].stretches[-1].engine == "cell1.0"
        assert log.calls[0].finish in ("stop", "length")
    assert stage.silent == []


async def test_a_call_that_arrives_between_route_cut_and_abort_goes_to_the_new_place(make: Make) -> None:
    stage = await make()
    await stage.begin("0-0", 0)
    late: list[asyncio.Task[dict]] = []

    async def call() -> None:
        routes = [args[0] for name, args, _ in stage.gateway.calls if name == "route"]
        assert 0 not in routes[-1].cells, "the cut comes before the abort"
        late.append(asyncio.create_task(stage.ask("0-0", "late", 16)))
        await stage.until_tokens(1, 4)  # not at the leaving cell, and not only after the move

    stage.cells[0].before["drain"] = call
    await stage.move(0, Role.TRAINING, x0_0=1)
    await late[0]
    (made,) = (await stage.log("0-0")).calls
    assert [s.engine for s in made.stretches] == ["cell1.0"]
    assert (await stage.cells[0].target.stats())["calls"] == 0


async def test_a_call_that_arrives_between_shut_and_route_cut_waits_for_the_routes(make: Make) -> None:
    """The engine answers 409; the harness sees nothing, and the leaving engine takes nothing."""
    stage = await make()
    await stage.begin("0-0", 0)
    answers: list[asyncio.Task[dict]] = []

    async def call() -> None:
        engine = stage.crew.live[0].report.url
        async with httpx.AsyncClient() as client:
            body = {"request_id": "r", "token_ids": [1, 2], "sampling_params": {"max_tokens": 4}}
            assert (await client.post(f"{engine}/inference/v1/generate", json=body)).status_code == 409
        answers.append(asyncio.create_task(stage.ask("0-0", "early", 16)))
        await asyncio.sleep(0.05)  # time to be refused

    stage.cells[0].after["shut"] = call
    stage.router.rehome([(ExecutionId(0, 0), 1)])  # known to control, not yet pushed
    await stage.moves.become(0, Role.TRAINING, -1)
    await answers[0]
    (made,) = (await stage.log("0-0")).calls
    assert [s.engine for s in made.stretches] == ["cell1.0"]
    assert (await stage.cells[0].target.stats())["calls"] == 0


async def test_an_abort_that_races_natural_stops_cuts_none_and_repeats_none(make: Make) -> None:
    """Calls of 8 to 192 tokens end before and after the abort: each answer is whole, whoever wins."""
    stage = await make()
    sizes = range(8, 200, 8)
    names = [f"0-{n}" for n in sizes]
    for name in names:
        await stage.begin(name, 0)
        await stage.begin(name.replace("0-", "1-", 1), 1)
    whole = await asyncio.gather(*(stage.ask(f"1-{n}", str(n), n) for n in sizes))
    calls = [asyncio.create_task(stage.ask(f"0-{n}", str(n), n)) for n in sizes]
    await stage.until(lambda stats: stats["calls"] == len(sizes) and stats["decode_tokens"] >= 24 * 16, 0)
    record = await stage.move(0, Role.TRAINING, **{f"x0_{n}": 1 for n in sizes})
    answers = [await call for call in calls]
    assert [a["usage"]["completion_tokens"] for a in answers] == [a["usage"]["completion_tokens"] for a in whole]
    logs = [await stage.log(name) for name in names]
    for log, name in zip(logs, names, strict=True):
        same(log.calls[0], (await stage.log(name.replace("0-", "1-", 1))).calls[0])
    assert all(len(log.calls) == 1 for log in logs)
    cut = [log for log in logs if any(s.cause == "abort" for s in log.calls[0].stretches)]
    assert 0 < len(cut) < 24, "some ended before the abort, some were interrupted"
    assert record.calls >= len(cut)


async def test_one_cell_in_time_slices_the_call_waits_in_the_gateway(make: Make) -> None:
    """K = 1: the harness sees one slow call, and the time that it was queued is told apart."""
    stage = await make(1)
    await stage.begin("1-0", 0)
    expected = text_of(await stage.ask("1-0", "0", 60))
    stage.router.forget(ExecutionId(1, 0))
    await stage.begin("0-0", 0)
    (call,) = started(stage, 60, "0-0")
    before = (await stage.cells[0].target.stats())["decode_tokens"]
    await stage.until_tokens(0, int(before) + 10)
    record = await stage.move(0, Role.TRAINING)
    assert (record.live, record.calls, record.kv_moved) == (1, 1, 0)
    assert record.kv_recomputed > record.tokens >= 10
    queued = await stage.app.queued_s("0-0")
    stage.training.ledger.add([a_micro_step()])
    await stage.until_counted(1)
    assert [(c["state"], c["tokens"]) for c in await stage.app.live()] == [("queued", record.tokens)]
    assert not call.done()
    assert await stage.app.queued_s("0-0") > queued
    record = await stage.move(0, Role.ROLLOUT)
    assert list(record.phases) == ["stop", "snapshot", "roll", "routes"]
    assert record.live == 1
    assert text_of(await call) == expected
    (made,) = (await stage.log("0-0")).calls
    assert made.timings["queued_s"] > 0
    assert [s.cause for s in made.stretches] == ["abort", made.finish]


async def test_a_harness_that_ends_while_its_call_is_queued(make: Make) -> None:
    """Its time-out: the client is cut, the token sealed. What was sampled is journaled; nothing comes back to life."""
    stage = await make(1)
    await stage.begin("0-0", 0)
    (call,) = started(stage, 200, "0-0")
    await stage.until_tokens(0, 10)
    record = await stage.move(0, Role.TRAINING)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    log = await stage.log("0-0")
    stage.router.forget(ExecutionId(0, 0))
    (made,) = log.calls
    assert made.finish == "abort"
    assert len(made.output) == record.tokens
    assert log.delivered == frozenset()
    before = await stage.cells[0].target.stats()
    assert (await stage.move(0, Role.ROLLOUT)).live == 0
    assert await stage.app.live() == []
    assert (await stage.cells[0].target.stats())["calls"] == before["calls"]


async def test_an_execution_that_ends_while_it_is_rehomed_has_no_home(make: Make) -> None:
    stage = await make()
    name = ExecutionId(0, 0)
    running = asyncio.create_task(stage.executions.run(name, 0))
    await stage.until_event(ev.Placed)
    assert stage.router.homes == {"0-0": 0}

    async def rehome(*_: object) -> None:  # the scheduler asked this before it heard of the end
        stage.router.rehome([(name, 1)])
        await stage.router.push()

    stage.gateway.before["seal"] = rehome
    stage.box.end("0-0")
    await running
    assert stage.router.homes == {}
    stage.router.rehome([(name, 1)])
    assert stage.router.homes == {}, "a word that comes later changes nothing"
    assert [type(e) for e in stage.events if e.type in ("placed", "ended", "settled")] == [
        ev.Placed,
        ev.Ended,
        ev.Settled,
    ]
    assert (await stage.move(0, Role.TRAINING)).live == 0


async def test_a_place_for_an_execution_that_runs_is_a_new_home(make: Make) -> None:
    stage = await make()
    running = asyncio.create_task(stage.executions.run(ExecutionId(0, 0), 0))
    await stage.until_event(ev.Placed)
    await stage.executions.run(ExecutionId(0, 0), 1)
    assert stage.router.homes == {"0-0": 1}
    stage.box.end("0-0", Ending.FINISHED)
    await running
    assert len(stage.of(ev.Placed)) == len(stage.of(ev.Settled)) == 1


async def test_calls_of_a_lost_cell_wait_for_a_home_and_go_on(make: Make) -> None:
    stage = await make()
    expected = await quiet(stage, 60, "1-0")
    await stage.begin("0-0", 0)
    (call,) = started(stage, 60, "0-0")
    await stage.until_tokens(0, 10)
    await stage.cells[0].target.stop()
    del stage.crew.live[0]
    stage.router.evict(0)
    await stage.router.push()
    await stage.until_state("0-0", "queued")
    assert stage.router.homes == {"1-0": 1}
    stage.router.rehome([(ExecutionId(0, 0), 1)])
    await stage.router.push()
    assert text_of(await call) == expected[0]


@pytest.mark.parametrize("phase", ["shut", "drain", "train"])
async def test_a_phase_that_fails_sends_the_cell_back_to_rollout(make: Make, phase: str) -> None:
    stage = await make(1)
    await stage.begin("0-0", 0)
    (call,) = started(stage, 60, "0-0")
    await stage.until_tokens(0, 5)

    async def fail(*_: object) -> None:
        raise EngineError("broken")

    stage.cells[0].before[phase] = fail
    record = await stage.move(0, Role.TRAINING)
    assert (record.role, record.outcome) == ("training", "rollout")
    assert record.failed.startswith(f"'{phase}' of cell 0 failed: ")
    assert record.failed.endswith("EngineError: broken")
    assert stage.of(ev.Moved)[-1].role is Role.ROLLOUT
    await call
    assert stage.lost == []
    del stage.cells[0].before[phase]
    assert (await stage.move(0, Role.TRAINING)).outcome == "training"


async def test_a_phase_that_misses_its_deadline_has_failed(make: Make) -> None:
    stage = await make(1)
    stage.moves.phase_s = 0.2

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    stage.cells[0].before["drain"] = never
    record = await stage.move(0, Role.TRAINING)
    assert record.outcome == "rollout"
    assert "'drain' of cell 0 was not done" in record.failed


async def test_a_cell_that_cannot_come_back_is_lost_and_so_is_one_that_fails_again_and_again(make: Make) -> None:
    stage = await make()

    async def fail(*_: object) -> None:
        raise EngineError("broken")

    stage.cells[0].before |= {"train": fail, "roll": fail}
    record = await stage.move(0, Role.TRAINING)
    assert record.outcome == "lost"
    assert stage.lost == [(0, 0, record.failed)]
    assert record.failed.count("broken") == 2
    assert stage.of(ev.Moved) == []
    stage.cells[1].before["train"] = fail
    outcomes = [(await stage.move(1, Role.TRAINING)).outcome for _ in range(3)]
    assert outcomes == ["rollout", "rollout", "lost"]


async def test_a_move_for_an_older_incarnation_is_refused_in_silence(make: Make) -> None:
    stage = await make(1)
    await stage.moves.become(0, Role.TRAINING, 7)
    assert stage.books.moves == []
    assert stage.events == []
    assert stage.crew.live[0].role is Role.ROLLOUT


async def test_a_cell_lost_while_it_moves_is_reported_once(make: Make) -> None:
    stage = await make()

    async def die(*_: object) -> None:
        stage.cells[1].kill()
        del stage.crew.live[1]  # whoever watches processes was faster
        stage.router.evict(1)

    stage.cells[1].before["drain"] = die
    record = await stage.move(1, Role.TRAINING)
    assert record.outcome == "lost"
    assert stage.lost == []
    assert stage.of(ev.Moved) == []


async def test_a_cell_that_arrives_while_a_version_is_published_is_routable_only_with_it(make: Make) -> None:
    """The burst ends with a cell in transit to rollout."""
    stage = await make()
    await stage.move(0, Role.TRAINING)
    await stage.move(1, Role.TRAINING)
    stage.training.ledger.add([a_micro_step("g0.0"), a_micro_step("g0.1")])
    await stage.until_counted(2)
    publishing: list[asyncio.Task[None]] = []

    async def publish(*_: object) -> None:  # `roll` of cell 1 has begun with the old version
        publishing.append(asyncio.create_task(stage.training.publish(1, 0)))
        await asyncio.sleep(0.05)

    stage.cells[1].before["roll"] = publish
    await stage.move(1, Role.ROLLOUT)
    await publishing[0]
    assert stage.crew.version == 1
    assert stage.cells[1].target._engine.health().version == 1
