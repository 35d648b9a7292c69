"""A cell leaves with calls in flight: the real gateway, real engines, with and without their keys and values."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from moving_house import TOKENS, House, executions, lively_model, prompt

from qwengyre.cluster import handover
from qwengyre.cluster.handover import Plan, hand_over
from qwengyre.errors import RefusedError
from qwengyre.schedule.handover import Rates
from qwengyre.transfer.weights import LocalWeights
from qwengyre.types import ExecutionId

LIVE = executions(32)
FEW = executions(6)
Texts = dict[ExecutionId, str]
Make = Callable[..., Awaitable[House]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lively_model(tmp_path_factory.mktemp("models") / "lively")


@pytest.fixture
async def make(folder: Path, tmp_path: Path) -> AsyncIterator[Make]:
    made: list[House] = []

    async def house(cells: int, **options: Any) -> House:
        made.append(House(folder, tmp_path / f"run-{len(made)}", cells, **options))
        return await made[-1].start()

    yield house
    for each in made:
        await each.stop()


@pytest.fixture(scope="module")
def texts(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Texts:
    """What each of the 32 executions is told when nothing moves."""

    async def run() -> Texts:
        house = await House(folder, tmp_path_factory.mktemp("still") / "run", 1).start()
        await house.begin(LIVE)
        choices = await asyncio.gather(*house.launch(LIVE))
        await house.stop()
        return {e: choice["message"]["content"] for e, choice in zip(LIVE, choices, strict=True)}

    found = asyncio.run(run())
    assert len(set(found.values())) == len(LIVE), "different prompts, different texts"
    return found


async def finish(house: House, calls: list[Any], texts: Texts, chosen: list[ExecutionId]) -> int:
    """All calls end with the text they have without a move, once; returns how many had partial output at the cut."""
    choices = await asyncio.gather(*calls)
    assert [c["finish_reason"] for c in choices] == ["length"] * len(chosen)
    assert {e: c["message"]["content"] for e, c in zip(chosen, choices, strict=True)} == {e: texts[e] for e in chosen}
    cut = 0
    for execution in chosen:
        [call] = house.recorded(execution)
        assert len(call.output) == call.stretches[-1].end == TOKENS
        cut += call.stretches[0].cause == "abort"
    return cut


@pytest.mark.parametrize("kv", [True, False], ids=["kv", "recompute"])
async def test_32_live_calls_go_on_elsewhere_to_the_same_text(make: Make, texts: Texts, kv: bool) -> None:
    house = await make(2)
    await house.begin(LIVE)
    calls = house.launch(LIVE)
    await house.until(0, calls=32, decode_tokens=32 * 15)
    before = await house.stats(0)
    left = await house.leave(dict.fromkeys(LIVE, 1), kv)
    assert await finish(house, calls, texts, LIVE) >= 24
    assert left.drained.calls >= 24
    assert left.drained.tokens >= before["decode_tokens"]
    source, there = await house.stats(0), await house.stats(1)
    prompts = sum(len(call.suffix) for e in LIVE for call in house.recorded(e))
    assert there["prefill_tokens"] + there["reused_tokens"] == prompts + left.drained.tokens
    if kv:
        assert left.handed is not None
        assert left.handed.failures == ()
        assert left.handed.moved_tokens == prompts + left.drained.tokens - 32 == there["moved_tokens_in"]
        assert there["prefill_tokens"] == 32, "the last token of each"
    else:
        assert there["prefill_tokens"] > 32 * 100
        assert there["moved_tokens_in"] == 0
    assert source["moved_tokens_out"] == there["moved_tokens_in"]


async def test_the_sources_memory_is_back_after_the_confirmation(make: Make, texts: Texts) -> None:
    house = await make(2)
    await house.begin(FEW)
    calls = house.launch(FEW)
    await house.until(0, calls=6, decode_tokens=60)
    held: list[dict[str, float]] = []

    async def look(*_: Any) -> None:
        held.append(await house.stats(0))

    house.hands[1].before["import_kv"] = look
    house.hands[0].before["drain"] = look
    await house.leave(dict.fromkeys(FEW, 1))
    at_import, at_drain = held[0], held[-1]
    assert at_import["pinned_tokens"] > 0, "until the destination confirms"
    assert (at_drain["pinned_tokens"], at_drain["kv_tokens"]) == (0, 0)
    assert not [id for id in LocalWeights._exposed if id.startswith("cell0.")], "nothing stays exposed"
    await finish(house, calls, texts, FEW)


async def test_a_destination_that_fails_computes_again(make: Make, texts: Texts) -> None:
    house = await make(2)
    await house.begin(FEW)
    calls = house.launch(FEW)
    await house.until(0, calls=6, decode_tokens=60)

    async def fail(*_: Any) -> None:
        raise MemoryError("no room for it")

    house.hands[1].before["import_kv"] = fail
    left = await house.leave(dict.fromkeys(FEW, 1))
    assert left.handed is not None
    assert "import at cell 1: MemoryError: no room for it" in left.handed.failures
    assert (left.handed.moved_tokens, left.handed.recomputed_tokens > 0) == (0, True)
    assert await finish(house, calls, texts, FEW) == 6
    assert (await house.stats(1))["prefill_tokens"] > 6 * 80
    source = await house.stats(0)
    assert (source["pinned_tokens"], source["moved_tokens_out"]) == (0, 0), "the source frees what nobody took"


@pytest.mark.parametrize("when", ["expect_kv", "import_kv"])
async def test_a_destination_that_dies_loses_no_call(make: Make, texts: Texts, when: str) -> None:
    house = await make(3)
    await house.begin(FEW)
    calls = house.launch(FEW)
    await house.until(0, calls=6, decode_tokens=60)

    async def die(*_: Any) -> None:
        if 1 in house.crew.live:
            await house.die(1)

    house.hands[1].before[when] = die
    left = await house.leave({e: 1 + e.member % 2 for e in FEW})
    assert left.handed is not None
    assert any(" at cell 1: DeadError" in line for line in left.handed.failures)
    assert left.handed.moved_tokens > 0, "the others' arrive"
    assert await finish(house, calls, texts, FEW) == 6


async def test_a_source_that_dies_in_between_loses_no_call(make: Make, texts: Texts) -> None:
    house = await make(2)
    await house.begin(FEW)
    calls = house.launch(FEW)
    await house.until(0, calls=6, decode_tokens=60)

    async def die(*_: Any) -> None:
        house.hands[0].kill()

    house.hands[0].before["send_kv"] = die
    await house.hands[0].shut.remote()
    house.router.rehome((e, 1) for e in FEW)
    del house.crew.live[0]
    await house.router.push()
    house.crew.live[0] = house.crew.live[1]
    handed = await hand_over(house.crew, 0, {str(e): 1 for e in FEW}, 30)
    assert any("DeadError" in line for line in handed.failures)
    assert handed.moved_tokens == 0
    assert await finish(house, calls, texts, FEW) == 6


async def test_one_that_never_answers_is_given_up(make: Make, texts: Texts) -> None:
    house = await make(2)
    await house.begin(FEW)
    calls = house.launch(FEW)
    await house.until(0, calls=6, decode_tokens=60)

    async def hang(*_: Any) -> None:
        await asyncio.Event().wait()

    house.hands[1].before["import_kv"] = hang
    left = await house.leave(dict.fromkeys(FEW, 1), limit_s=0.5)
    assert left.handed is not None
    assert any("not handed over in" in line for line in left.handed.failures)
    assert await finish(house, calls, texts, FEW) == 6


async def test_a_call_interrupted_at_version_3_continues_at_4(make: Make, texts: Texts) -> None:
    house = await make(2, versions=(3, 4))
    await house.begin(FEW)
    calls = house.launch(FEW)
    await house.until(0, calls=6, decode_tokens=60)
    left = await house.leave(dict.fromkeys(FEW, 1))
    assert left.handed is not None
    assert any("version 3" in line and "4: prefill again" in line for line in left.handed.failures)
    assert left.handed.moved_tokens == 0
    assert await finish(house, calls, texts, FEW) == 6
    for execution in FEW:
        [call] = house.recorded(execution)
        assert [stretch.version for stretch in call.stretches] == [3, 4]
    there = await house.stats(1)
    assert (there["moved_tokens_in"], there["reused_tokens"]) == (0, 0)


@pytest.mark.parametrize("moment", ["shut", "export_kv"], ids=["before the routes", "before the abort"])
async def test_a_call_that_arrives_while_its_cell_leaves(make: Make, texts: Texts, moment: str) -> None:
    house = await make(2)
    await house.begin(FEW)
    calls = house.launch(FEW[:-1])
    await house.until(0, calls=5, decode_tokens=50)
    late: list[Any] = []

    async def arrive(*_: Any) -> None:
        late.extend(house.launch(FEW[-1:]))
        while not (house.tried[5:] if moment == "shut" else await house.waiting(FEW[-1], 1)):
            await asyncio.sleep(0.001)

    (house.hands[0].after if moment == "shut" else house.hands[0].before)[moment] = arrive
    await house.leave(dict.fromkeys(FEW, 1))
    assert await finish(house, calls + late, texts, FEW) == 5
    [call] = house.recorded(FEW[-1])
    assert {stretch.engine for stretch in call.stretches} == {"cell1.0"}
    assert (await house.stats(0))["calls"] == 5, "the leaving cell takes nothing new"


async def test_a_natural_stop_wins_over_the_abort_and_its_keys_and_values_move_all_the_same(make: Make) -> None:
    house = await make(2)
    await house.begin(FEW)
    calls = house.launch(FEW, 12)

    async def ended(*_: Any) -> None:
        while await house.cells[0]._engine_.calls():
            await asyncio.sleep(0.001)

    await house.until(0, calls=6)
    house.hands[0].before["export_kv"] = ended
    left = await house.leave(dict.fromkeys(FEW, 1))
    choices = await asyncio.gather(*calls)
    assert left.drained.calls == 0
    for execution in FEW:
        [call] = house.recorded(execution)
        assert [(s.cause, s.engine) for s in call.stretches] == [("length", "cell0.0")]
    assert left.handed is not None
    assert left.handed.moved_tokens > 0
    for execution, choice in zip(FEW, choices, strict=True):
        talk = [*prompt(execution), choice["message"], {"role": "user", "content": "go on"}]
        await house.ask(execution, talk, 5)
    there = await house.stats(1)
    assert there["prefill_tokens"] < 6 * 40, "the next turn's own tokens, not the first one's"
    assert there["reused_tokens"] >= left.handed.moved_tokens


async def test_what_is_cheaper_to_compute_again_is_not_moved(make: Make, texts: Texts) -> None:
    house = await make(2)
    await house.begin(FEW)
    door, engine = house.cells[1]._kv_, house.cells[1]._engine_
    assert await door.expect([], 1) == Rates(None, None), "nothing is known yet"
    door._received = 1000, 1000.0
    engine._prefilled = 1000, 1.0  # type: ignore[attr-defined]
    assert await door.expect([], 1) == Rates(1.0, 1000.0)
    calls = house.launch(FEW)
    await house.until(0, calls=6, decode_tokens=60)
    left = await house.leave(dict.fromkeys(FEW, 1))
    assert left.handed is not None
    assert (left.handed.moved_tokens, left.handed.failures) == (0, ())
    assert left.handed.recomputed_tokens > 6 * 80
    assert (await house.stats(0))["moved_tokens_out"] == 0
    assert await finish(house, calls, texts, FEW) == 6


async def test_parcels_of_a_bounded_size_and_rates_measured_by_them(
    make: Make, texts: Texts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "PARCEL_BYTES", 1)
    house = await make(3)
    await house.begin(FEW)
    calls = house.launch(FEW)
    await house.until(0, calls=6, decode_tokens=60)
    left = await house.leave({e: 1 + e.member % 2 for e in FEW})
    assert left.handed is not None
    assert (left.handed.recomputed_tokens, left.handed.failures) == (0, ())
    assert [sum(name == "import_kv" for name, *_ in hand.calls) for hand in house.hands] == [0, 3, 3]
    rates = await house.cells[1].expect_kv((), 1)
    assert rates is not None
    assert rates.bandwidth is not None
    assert rates.bandwidth > 0
    assert await finish(house, calls, texts, FEW) == 6
    assert [(await house.stats(cell))["prefill_tokens"] for cell in (1, 2)] == [3, 3]


async def test_an_old_incarnations_messages_are_refused(make: Make) -> None:
    house = await make(1)
    cell = house.cells[0]
    for message in (
        cell.expect_kv(("0-0",), 600, incarnation=-1),
        cell.export_kv(Plan({}, {}), incarnation=-1),
        cell.send_kv("parcel 0", incarnation=-1),
        cell.free_kv(("parcel 0",), True, incarnation=-1),
    ):
        with pytest.raises(RefusedError):
            await message
    assert (await cell.export_kv(Plan({}, {}), incarnation=0)).parcels == ()


async def test_an_execution_without_a_new_place_keeps_its_calls_in_the_gateway(make: Make, texts: Texts) -> None:
    house = await make(2)
    await house.begin(FEW)
    calls = house.launch(FEW)
    await house.until(0, calls=6, decode_tokens=60)
    left = await house.leave(dict.fromkeys(FEW[:3], 1))
    assert left.drained.calls == 6
    assert left.handed is not None
    assert left.handed.failures == ()
    await asyncio.gather(*calls[:3])
    assert not any(call.done() for call in calls[3:])
    house.router.rehome((e, 1) for e in FEW[3:])
    await house.router.push()
    assert await finish(house, calls, texts, FEW) == 6
