import asyncio

import numpy as np

from qwengyre.cluster.ledger import Claim, Ledger
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
