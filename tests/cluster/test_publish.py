"""Weights after the optimizer: published to cells that answer calls, and kept apart from those in the making."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from fleet import Fleet, distance, group

from qwengyre.errors import RefusedError
from qwengyre.schedule import events as ev
from qwengyre.types import Role

PROMPT = list(b"Count to ten: one, two, ")


@pytest.fixture
async def fleets(tmp_path: Path) -> AsyncIterator[Callable[[int], Fleet]]:
    torch.set_num_threads(1)
    made: list[Fleet] = []

    def make(count: int) -> Fleet:
        made.append(Fleet(tmp_path, count))
        return made[-1]

    yield make
    for fleet in made:
        await fleet.stop()


async def generate(fleet: Fleet, cell: int, max_tokens: int = 8) -> dict[str, Any]:
    body = {
        "request_id": f"r{cell}-{max_tokens}",
        "token_ids": PROMPT,
        "sampling_params": {"max_tokens": max_tokens, "temperature": 1.0, "stop_token_ids": [], "seed": 5},
        "handle": "0-0",
    }
    async with httpx.AsyncClient(timeout=60) as client:
        answer = await client.post(f"{fleet.crew.live[cell].report.url}/inference/v1/generate", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


def versions(choice: dict[str, Any]) -> list[str]:
    return [span["version"] for span in choice["weight_versions"]]


async def step(fleet: Fleet, number: int) -> None:
    """One step, by the core alone."""
    await fleet.open(number, {number: group(number, 2)})
    await fleet.trained(number, 2)
    await fleet.training.close(number)


async def test_a_publish_reaches_calls_between_two_tokens(fleets):
    """A live call goes on; a cell in training gets the weights when it rolls."""
    fleet = await fleets(3).start()
    await fleet.join(0)
    await fleet.join(1)
    await step(fleet, 0)
    before = fleet.weights(2)
    call = asyncio.create_task(generate(fleet, 2, 200))
    while (await fleet.cell(2).stats())["decode_tokens"] < 5:
        await asyncio.sleep(0.01)
    await fleet.training.publish(1, 1)
    assert fleet.events[-1] == ev.Published(0.0, 1)
    choice = await call
    assert choice["finish_reason"] in ("stop", "length")
    assert versions(choice) == ["0", "1"], "one call, both versions, each token stamped with its own"
    assert not torch.equal(fleet.weights(2), before)
    assert torch.equal(fleet.weights(2), fleet.weights(0))
    assert torch.equal(fleet.weights(1), before), "in training: not asked, and not published to"
    await fleet.leave(1)
    assert torch.equal(fleet.weights(1), fleet.weights(0))
    assert versions(await generate(fleet, 1)) == ["1"]


async def test_published_is_reported_when_all_hold_it_or_are_lost(fleets):
    fleet = await fleets(3).start()
    await fleet.join(0)
    await step(fleet, 0)
    holding, let = asyncio.Event(), asyncio.Event()

    async def hold(*_: object) -> None:
        holding.set()
        await let.wait()

    fleet.hands[1].before["publish"] = hold
    publishing = asyncio.create_task(fleet.training.publish(1, 1))
    await holding.wait()
    await fleet.hands[2].publish.remote(1, await fleet.cell(0).expose())
    assert not any(isinstance(e, ev.Published) for e in fleet.events), "cell 1 does not hold it yet"
    fleet.hands[1].kill()
    await publishing
    assert fleet.events[-1] == ev.Published(0.0, 1)
    assert [loss[:2] for loss in fleet.losses] == [(1, 0)]
    assert torch.equal(fleet.weights(2), fleet.weights(0))


async def test_a_restarted_cell_rolls_out_with_the_published_weights_only(fleets):
    fleet = await fleets(2).start()
    await fleet.join(0)
    await step(fleet, 0)
    await fleet.training.publish(1, 1)
    await fleet.lose(1)
    await fleet.restart(1)
    assert torch.equal(fleet.weights(1), fleet.weights(0))
    assert versions(await generate(fleet, 1)) == ["1"]


async def test_weights_are_pulled_only_when_they_differ(fleets):
    fleet = await fleets(2).start()
    satellite = fleet.cell(1)._share_
    pulled: list[str] = []
    pull = satellite._transfer.pull
    satellite._transfer.pull = lambda ticket: pulled.append(ticket.id) or pull(ticket)
    await fleet.join(0)
    await fleet.open(0, {0: group(0, 4)})
    await fleet.join(1)
    await fleet.trained(0, 4)
    assert pulled == [], "it started with the same weights"
    await fleet.training.close(0)
    await fleet.training.publish(1, 1)
    await fleet.leave(1)
    assert len(pulled) == 1
    await fleet.join(1)
    await fleet.leave(1)
    assert len(pulled) == 1


async def test_a_snapshot_stays_the_same_until_the_next_step(fleets):
    fleet = await fleets(2).start()
    core = fleet.cell(0)
    await fleet.join(0)
    first = await core.expose()
    await fleet.open(0, {0: group(0, 2)})
    await fleet.trained(0, 2)
    assert await core.expose() == first, "exposed once while gradients accumulate"
    await fleet.training.close(0)
    second = await core.expose()
    assert (second.step, second.version) == (1, 0)
    assert second.ticket.id != first.ticket.id
    kept = fleet.cell(1)._share_._transfer
    assert kept.pull(first.ticket), "published: a cell that returns in the middle of the burst needs it"
    published = await core.expose(1)
    assert (published.step, published.version, published.ticket) == (1, 1, second.ticket)


async def test_parameters_are_updated_in_place(fleets):
    """Engine and trainer share them."""
    fleet = await fleets(2).start()
    objects = {n: p.data_ptr() for n, p in fleet.cell(1)._trainer_.parameters().items()}
    await fleet.join(0)
    await step(fleet, 0)
    await fleet.training.publish(1, 1)
    await fleet.join(1)
    assert {n: p.data_ptr() for n, p in fleet.cell(1)._trainer_.parameters().items()} == objects


async def test_a_core_that_returns_in_the_middle_of_a_step_keeps_its_gradient(fleets):
    fleet = await fleets(2).start()
    data = {0: group(0, 3), 1: group(1, 3)}
    await fleet.open(0, {0: data[0]})
    await fleet.join(0)
    await fleet.trained(0, 3)
    await fleet.leave(0)
    assert versions(await generate(fleet, 0)) == ["0"]
    await fleet.join(1)
    await fleet.admit(0, {1: data[1]})
    await fleet.trained(0, 6)  # a satellite's flush reaches a core that rolls out
    await fleet.join(0)
    assert distance(fleet.gradient(), fleet.expected(data[0] + data[1])) < 1e-6


async def test_in_the_middle_of_a_burst_a_cell_that_returns_serves_the_published_weights(fleets):
    """mu = 2: the core is a step ahead of what is published; the tokens it samples are of the version they say."""
    fleet = await fleets(2).start()
    published = fleet.weights(0)
    await fleet.join(0)
    await fleet.join(1)
    await step(fleet, 0)
    ahead = fleet.weights(0)
    assert not torch.equal(ahead, published)
    await fleet.training.wake(1)
    for cell in (1, 0):
        await fleet.leave(cell)
        assert torch.equal(fleet.weights(cell), published)
        assert versions(await generate(fleet, cell)) == ["0"]
    assert (await fleet.cell(0).expose()).step == 1, "what it exposes for training is the newer set"
    await fleet.join(0)
    assert torch.equal(fleet.weights(0), ahead)
    await step(fleet, 1)
    await fleet.leave(0)
    fleet.crew.live[0].role = Role.ROLLOUT
    await fleet.training.publish(1, 2)
    assert torch.equal(fleet.weights(0), fleet.weights(1))
    assert versions(await generate(fleet, 0)) == ["1"]


async def test_a_step_without_weight_makes_no_optimizer_call(fleets):
    fleet = await fleets(2).start()
    before = fleet.weights(0)
    await fleet.open(0, {})
    await fleet.training.close(0)
    assert "close_step" not in [name for name, *_ in fleet.hands[0].calls]
    await fleet.open(1, {1: group(1, 2)})
    assert torch.equal(fleet.weights(0), before)
    await fleet.join(0)
    await fleet.join(1)
    await fleet.trained(1, 2)
    with pytest.raises(RefusedError):
        await fleet.cell(1).accumulate(group(1, 1)[0], 0)
