import asyncio
from itertools import cycle

import numpy as np
import pytest

from qwengyre.cluster.ledger import Claim, Ledger
from qwengyre.errors import RefusedError
from qwengyre.types import MicroStep


def micro_step(name: str) -> MicroStep:
    return MicroStep(name, 0, np.zeros(2, np.int32), (2,), np.zeros(2, np.float32), np.zeros(2, np.float32), 1.0)


def enroll(ledger: Ledger) -> None:
    for cell in (0, 1):
        ledger.enroll(cell, 0)


async def test_every_micro_step_is_claimed_once_and_counted_once() -> None:
    ledger = Ledger()
    ledger.open(0)
    enroll(ledger)
    ledger.add([micro_step("a"), micro_step("b")])
    first, second = await asyncio.gather(ledger.claim(0, 0), ledger.claim(1, 0))
    assert {first.micro_step.name, second.micro_step.name} == {"a", "b"}
    assert ledger.count(first)
    assert not ledger.count(first), "a second acknowledgement of the same claim counts nothing"
    assert ledger.counted == {"a"}


async def test_a_claim_waits_for_data_and_a_cancelled_one_takes_none() -> None:
    ledger = Ledger()
    ledger.open(0)
    enroll(ledger)
    waiting = asyncio.create_task(ledger.claim(0, 0))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    ledger.add([micro_step("a")])
    assert (await ledger.claim(1, 0)).micro_step.name == "a"


async def test_a_lost_cell_returns_its_claims_and_its_late_count_is_refused() -> None:
    ledger = Ledger()
    ledger.open(0)
    enroll(ledger)
    ledger.add([micro_step("a"), micro_step("b")])
    lost = await ledger.claim(1, 0)
    assert ledger.give_back(1) == 1
    again = await ledger.claim(0, 0)
    assert again.micro_step.name == lost.micro_step.name, "what came back is first in line"
    assert not ledger.count(lost)
    assert ledger.count(again)


async def test_a_name_is_added_once_and_a_claim_of_an_older_step_is_refused() -> None:
    ledger = Ledger()
    ledger.open(0)
    enroll(ledger)
    ledger.add([micro_step("a")])
    ledger.add([micro_step("a")])
    assert len(ledger.pending) == 1
    claim = await ledger.claim(0, 0)
    assert ledger.count(claim)
    ledger.open(1)
    ledger.add([micro_step("a")])
    fresh = await ledger.claim(0, 0)
    assert not ledger.count(Claim(0, 0, 0, fresh.micro_step))
    assert ledger.count(fresh)


def packed(name: str, sequences: int) -> MicroStep:
    """`sequences` sequences of 4 tokens, told apart by their ids."""
    total = 4 * sequences
    ids = np.arange(total, dtype=np.int32)
    return MicroStep(name, 0, ids, (4,) * sequences, np.ones(total, np.float32), np.zeros(total, np.float32), 1.0)


async def test_near_the_end_claims_take_parts_and_the_scheduler_counts_whole_ones() -> None:
    ledger = Ledger()
    ledger.open(0)
    enroll(ledger)
    ledger.add([packed(f"g0.{k}", 8) for k in range(5)])
    sizes, claims = [], []
    for cell in cycle((0, 1)):
        if not ledger.pending:
            break
        claims.append(await ledger.claim(cell, 0))
        sizes.append(len(claims[-1].micro_step.lengths))
        assert sum(ledger.backlog) == 5
        assert len(claims) < 100
    assert sizes[:2] == [8, 8], "whole while there are enough"
    assert sizes[-1] == 1
    assert sum(sizes) == 40
    assert ledger.backlog == (0, 5, 0)
    parts = [claim for claim in claims if claim.name.startswith("g0.4/")]
    assert len(parts) > 1
    for claim in claims:
        before = ledger.backlog[2]
        assert ledger.count(claim)
        assert not ledger.count(claim)
        assert ledger.backlog[2] - before in (0, 1)
    assert ledger.backlog == (0, 0, 5)
    ids = {name: [] for name in ("g0.0", "g0.4")}
    for claim in claims:
        ids.get(claim.name.split("/")[0], []).extend(claim.micro_step.ids)
    assert all(sorted(found) == list(range(32)) for found in ids.values()), "every sequence once"


async def test_one_cell_gets_whole_micro_steps() -> None:
    ledger = Ledger()
    ledger.open(0)
    ledger.enroll(0, 0)
    ledger.add([packed("g0.0", 8)])
    assert (await ledger.claim(0, 0)).name == "g0.0"


async def test_parts_of_a_lost_cell_return_and_those_of_a_lost_core_become_whole() -> None:
    ledger = Ledger()
    ledger.open(0)
    enroll(ledger)
    ledger.add([packed("g0.0", 8)])
    first, second = await ledger.claim(0, 0), await ledger.claim(1, 0)
    assert ledger.count(first)
    assert ledger.backlog == (1, 0, 0)
    assert ledger.give_back(1) == 1
    third = await ledger.claim(0, 0)
    assert set(third.micro_step.ids) <= set(second.micro_step.ids), "first in line"
    assert ledger.core_lost() == 1
    assert [m.name for m in ledger.pending] == ["g0.0"]
    assert ledger.backlog == (1, 0, 0)
    assert not ledger.count(third)
    assert not ledger.count(first)


async def test_a_dismissed_cell_claims_nothing_and_keeps_what_it_has() -> None:
    ledger = Ledger()
    ledger.open(0)
    enroll(ledger)
    ledger.add([micro_step("a")])
    held = await ledger.claim(1, 0)
    waiting = asyncio.create_task(ledger.claim(1, 0))
    await asyncio.sleep(0)
    ledger.dismiss(1)
    assert await waiting is None
    ledger.add([micro_step("b")])
    assert await ledger.claim(1, 0) is None
    assert ledger.holds(held)
    ledger.enroll(1, 3)
    with pytest.raises(RefusedError, match="claims as 0, it is 3"):
        await ledger.claim(1, 0)
