"""Real cells train one batch: whoever joins, leaves or dies, the gradient is that of one cell.

Each fault point of the issue has a test of its name; LocalHand's hooks hold a message at the named moment.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from fleet import Fleet, distance, group

from qwengyre.errors import RefusedError
from qwengyre.schedule import events as ev
from qwengyre.types import MicroStep

ATOL = 1e-6


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


class Gate:
    """A hook that holds the `nth` call and those after it, until `open`."""

    def __init__(self, nth: int = 1) -> None:
        self._left = nth
        self.reached, self._open = asyncio.Event(), asyncio.Event()

    async def __call__(self, *_: object) -> None:
        self._left -= 1
        if self._left <= 0:
            self.reached.set()
            await self._open.wait()

    def open(self) -> None:
        self._open.set()


async def reached(event: asyncio.Event) -> None:
    async with asyncio.timeout(30):
        await event.wait()


async def counted(fleet: Fleet, step: int, data: list[MicroStep]) -> None:
    """All are counted, and the gradient is that of one cell."""
    await fleet.trained(step, len(data))
    assert not fleet.ledger.claimed
    assert distance(fleet.gradient(), fleet.expected(data)) < ATOL


async def test_a_cell_joins_after_a_third_of_the_micro_steps(fleets):
    fleet = await fleets(2).start()
    data = group(0, 9)
    gate = fleet.hands[0].before["accumulate"] = Gate(4)
    await fleet.open(0, {0: data})
    await fleet.join(0)
    await reached(gate.reached)
    assert len(fleet.ledger.counted) == 3
    second = fleet.hands[1].before["accumulate"] = Gate(4)
    await fleet.join(1)
    await reached(second.reached)
    gate.open()
    second.open()
    await counted(fleet, 0, data)
    assert set(fleet.accumulated().values()) == {1}, "each micro-step was computed once"
    assert [name for name, *_ in fleet.hands[1].calls].count("flush") >= 1


async def test_a_cell_leaves_in_the_middle(fleets):
    """A move to rollout waits for the running micro-step, flushes, is acknowledged, then rolls."""
    fleet = await fleets(2).start()
    data = group(0, 9)
    core = fleet.hands[0].before["accumulate"] = Gate(2)
    running = fleet.hands[1].after["accumulate"] = Gate(3)
    await fleet.open(0, {0: data})
    await fleet.join(0)
    await fleet.join(1)
    await reached(running.reached)
    leaving = asyncio.create_task(fleet.leave(1))
    await asyncio.sleep(0)
    assert not leaving.done(), "the micro-step is still running"
    running.open()
    await leaving
    assert [name for name, *_ in fleet.hands[1].calls][-4:] == ["accumulate", "flush", "acknowledge", "roll"]
    assert len(fleet.ledger.counted) == 4, "one by the core, three by the cell that left"
    core.open()
    await counted(fleet, 0, data)
    assert set(fleet.accumulated().values()) == {1}


async def test_a_cell_is_killed_with_unacknowledged_micro_steps(fleets):
    fleet = await fleets(2).start()
    data = group(0, 9)
    core = fleet.hands[0].before["accumulate"] = Gate(2)
    running = fleet.hands[1].before["accumulate"] = Gate(4)
    await fleet.open(0, {0: data})
    await fleet.join(0)
    await fleet.join(1)
    await reached(running.reached)
    assert await fleet.lose(1) == 4, "three in its buffer and the running one"
    assert fleet.events[-1] == ev.Backlog(0.0, 0, pending=7, claimed=1, counted=1)
    core.open()
    await counted(fleet, 0, data)
    assert sorted(fleet.accumulated().values()) == [1] * 5 + [2] * 4, "its claims were computed again"


async def test_satellite_dies_after_its_flush_before_the_acknowledgement(fleets):
    """The core has it: nothing returns, nothing is counted twice."""
    fleet = await fleets(2).start()
    data = group(0, 6)
    core = fleet.hands[0].before["accumulate"] = Gate(2)
    received = fleet.hands[0].after["receive"] = Gate()
    await fleet.open(0, {0: data})
    await fleet.join(0)
    await fleet.join(1)
    await reached(received.reached)  # the gradient lies at the core, whose answer is on its way
    fleet.hands[1].kill()
    losing = asyncio.create_task(fleet.lose(1))
    await asyncio.sleep(0)
    received.open()
    assert await losing == 0, "what the core received does not return"
    core.open()
    await counted(fleet, 0, data)
    assert set(fleet.accumulated().values()) == {1}


async def test_satellite_dies_with_a_flush_that_never_arrives(fleets):
    """The core could not pull it: its gradient is as before, the claims return."""
    fleet = await fleets(2).start()
    data = group(0, 6)
    core = fleet.hands[0].before["accumulate"] = Gate(2)

    async def die(*_: object) -> None:
        share = fleet.cell(1)._share_
        share._transfer.free(share._flush.ticket)
        fleet.hands[1].kill()

    fleet.hands[0].before["receive"] = die
    await fleet.open(0, {0: data})
    await fleet.join(0)
    await fleet.join(1)
    await fleet.lost()
    assert [loss[0] for loss in fleet.losses] == [1], "the satellite is lost, not the core"
    assert await fleet.lose(1) == 4
    core.open()
    await counted(fleet, 0, data)


async def test_join_while_the_core_closes_the_step(fleets):
    """The snapshot is checked after it was pulled: a cell never adds gradient made with the weights of before."""
    fleet = await fleets(2).start()
    data = {step: group(step, 3) for step in range(2)}
    await fleet.open(0, {0: data[0]})
    await fleet.join(0)
    await fleet.trained(0, 3)
    pulling = fleet.hands[1].before["train"] = Gate()
    joining = asyncio.create_task(fleet.join(1))
    await reached(pulling.reached)  # it was told to pull the weights of step 0
    core = fleet.hands[0].before["accumulate"] = Gate(2)
    await fleet.training.close(0)
    await fleet.open(1, {1: data[1]})
    pulling.open()
    await joining
    await fleet.until(ev.Backlog, step=1, pending=0, claimed=1, counted=2)
    core.open()
    await fleet.trained(1, 3)
    assert torch.equal(fleet.weights(1), fleet.weights(0))
    with pytest.raises(RefusedError, match="weights of step 1, asked: step 0"):
        await fleet.cell(1).accumulate(data[0][0], 0)
    steps = [args[0].step for name, args, _ in fleet.hands[1].calls if name == "train"]
    assert steps == [0, 1]


async def test_core_dies_with_accumulated_gradients(fleets):
    """All of the open step returns; what a satellite still holds of it is not counted at the next core."""
    fleet = await fleets(2).start()
    data = group(0, 6)
    core = fleet.hands[0].before["accumulate"] = Gate(3)
    flushing = fleet.hands[1].after["flush"] = Gate()
    await fleet.open(0, {0: data})
    await fleet.join(0)
    await fleet.join(1)
    await reached(flushing.reached)
    assert len(fleet.ledger.counted) == 2
    stale = fleet.cell(1)._share_._flush
    assert await fleet.lose(0) == 6
    assert sorted(m.name for m in fleet.ledger.pending) == [m.name for m in data]
    assert fleet.events[-1] == ev.Backlog(0.0, 0, pending=6, claimed=0, counted=0)
    core.open()
    again = fleet.hands[0].before["accumulate"] = Gate()
    await fleet.restart(0)
    await fleet.join(0)
    await reached(again.reached)
    flushing.open()  # the satellite answers control, which knows that its claims returned
    await asyncio.wait([fleet.crew.live[1].feed])
    assert not fleet.losses, "the satellite is not to blame"
    assert "receive" not in [name for name, *_ in fleet.hands[0].calls]
    again.open()
    await counted(fleet, 0, data)
    with pytest.raises(RefusedError, match="was counted before"):
        await fleet.cell(0).receive(stale)
    await counted(fleet, 0, data)


async def test_an_old_incarnations_message_arrives(fleets):
    fleet = await fleets(2).start()
    data = group(0, 2)
    await fleet.open(0, {0: data})
    await fleet.lose(1)
    await fleet.restart(1)
    cell = fleet.cell(1)
    assert cell.incarnation == 1
    await cell.shut()
    await cell.drain()
    await cell.train(await fleet.cell(0).expose())
    late = [
        lambda: cell.accumulate(data[0], 0, incarnation=0),
        lambda: cell.flush("1.0/1", ("g0.0",), incarnation=0),
        lambda: cell.roll(0, incarnation=0),
        lambda: cell.publish(7, incarnation=0),
        lambda: cell.drain(incarnation=0),
    ]
    for message in late:
        with pytest.raises(RefusedError, match="incarnation 1, the message is for 0"):
            await message()
    assert not fleet.gradient(1).any()
    fleet.ledger.enroll(1, 1)
    with pytest.raises(RefusedError, match="claims as 0, it is 1"):
        await fleet.ledger.claim(1, 0)
    assert len(fleet.ledger.pending) == 2


async def test_a_flush_delivered_twice(fleets):
    fleet = await fleets(2).start()
    core, satellite = fleet.cell(0), fleet.cell(1)
    data = group(0, 2)
    for cell, snapshot in ((core, None), (satellite, await core.expose())):
        await cell.shut()
        await cell.drain()
        await cell.train(snapshot)
    await core.accumulate(data[0], 0)
    await satellite.accumulate(data[1], 0)
    flush = await satellite.flush("1.0/1", ("g0.1",))
    assert flush is not None
    assert await satellite.flush("1.0/1", ("g0.1",)) == flush, "asked again: the same flush"
    assert await core.receive(flush)
    assert not await core.receive(flush)
    assert distance(fleet.gradient(), fleet.expected(data)) < ATOL
    await satellite.acknowledge("another")
    assert fleet.gradient(1).any(), "only the acknowledgement of this flush drops the buffer"
    await satellite.acknowledge("1.0/1")
    assert not fleet.gradient(1).any()
    await core.close_step(0, 0.5, 1e-2)
    with pytest.raises(RefusedError, match="of step 0, the core is at step 1"):
        await core.receive(flush)


async def test_an_accumulate_delivered_twice(fleets):
    fleet = await fleets(1).start()
    core, data = fleet.cell(0), group(0, 1)
    await core.train()
    assert await core.accumulate(data[0], 0) == await core.accumulate(data[0], 0)
    assert distance(fleet.gradient(), fleet.expected(data)) < ATOL


async def test_a_claim_of_an_old_step(fleets):
    fleet = await fleets(2).start()
    await fleet.open(0, {0: group(0, 1)})
    fleet.ledger.enroll(1, 0)
    claim = await fleet.ledger.claim(1, 0)
    fleet.ledger.give_back(1)
    await fleet.join(0)
    await fleet.trained(0, 1)
    await fleet.training.close(0)
    await fleet.open(1, {0: group(0, 1)})
    assert not fleet.ledger.count(claim)
    await fleet.training.wake(1)
    with pytest.raises(RefusedError, match="step 0"):
        await fleet.cell(1).accumulate(claim.micro_step, claim.step)


async def test_satellites_take_the_new_weights_when_the_next_step_of_a_burst_opens(fleets):
    fleet = await fleets(2).start()
    data = {step: group(step, 6) for step in range(2)}
    await fleet.open(0, {0: data[0]})
    await fleet.join(0)
    await fleet.join(1)
    await fleet.trained(0, 6)
    before = fleet.weights(1)
    await fleet.training.close(0)
    second = fleet.hands[0].before["accumulate"] = Gate(2)
    await fleet.open(1, {1: data[1]})
    await fleet.until(ev.Backlog, step=1, pending=0, claimed=1, counted=5)
    second.open()
    await fleet.trained(1, 6)
    assert not torch.equal(fleet.weights(1), before)
    assert torch.equal(fleet.weights(1), fleet.weights(0))
    assert fleet.cell(1)._trainer_._optimizer is None
    assert len(fleet.books.rows) == 1
    assert fleet.books.rows[0]["actor/grad_norm"] > 0


async def test_near_the_end_three_cells_share_micro_steps_and_the_counts_stay_whole(fleets):
    fleet = await fleets(3).start()
    data = group(0, 5, lengths=(30, 26, 22, 18))
    gates = [Gate(2) for _ in range(3)]
    for hand, gate in zip(fleet.hands, gates, strict=True):
        hand.before["accumulate"] = gate
    await fleet.open(0, {0: data})
    for index, gate in enumerate(gates):
        await fleet.join(index)
        await reached(gate.reached)
    for gate in gates:
        gate.open()
    await counted(fleet, 0, data)
    backlogs = [event for event in fleet.events if isinstance(event, ev.Backlog)]
    assert {b.pending + b.claimed + b.counted for b in backlogs} == {5}
    assert any("/" in name for name in fleet.accumulated()), "some were cut"
    assert fleet.books.rows == []
    await fleet.training.close(0)
    assert fleet.books.rows[0]["actor/grad_norm"] > 0
    trained = (args[0].tokens for hand in fleet.hands for name, args, _ in hand.calls if name == "accumulate")
    assert sum(trained) == sum(m.tokens for m in data), "each sequence once"


@pytest.mark.parametrize("seed", range(3))
async def test_whoever_comes_goes_or_dies_every_micro_step_counts_once(fleets, seed: int):
    """Joins, leaves and deaths of two satellites at random moments, two steps, groups that arrive in between."""
    rng = np.random.default_rng(seed)
    fleet = await fleets(3).start()
    for step in range(2):
        groups = {10 * step + k: group(10 * step + k, 3, lengths=(20, 16, 12)) for k in range(3)}
        data = [m for each in groups.values() for m in each]
        fleet.training.open(step)
        if fleet.crew.live[0].feed is None:
            await fleet.join(0)
        waiting = list(groups)
        while waiting or rng.random() < 0.6:
            for _ in range(rng.integers(30)):
                await asyncio.sleep(0)
            index = int(rng.integers(1, 3))
            training = fleet.crew.live[index].feed is not None
            match int(rng.integers(4)):
                case 0 if waiting:
                    await fleet.admit(step, {waiting[0]: groups[waiting.pop(0)]})
                case 1 if not training:
                    await fleet.join(index)
                case 2 if training:
                    await fleet.leave(index)
                case 3:
                    await fleet.lose(index)
                    await fleet.restart(index)
                case _:
                    pass
        await counted(fleet, step, data)
        await fleet.training.close(step)
    assert fleet.losses == []
    assert len(fleet.books.rows) == 2


async def test_a_claim_is_told(fleets):
    """What is claimed is no reason to lend another cell."""
    fleet = await fleets(1).start()
    gate = fleet.hands[0].before["accumulate"] = Gate()
    await fleet.open(0, {0: group(0, 1)})
    await fleet.join(0)
    await reached(gate.reached)
    assert fleet.events[-1] == ev.Backlog(0.0, 0, pending=0, claimed=1, counted=0)
    gate.open()
    await fleet.trained(0, 1)
