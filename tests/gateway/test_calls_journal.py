"""The journal of calls: what was acknowledged is there, byte for byte, after any death."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwengyre.errors import JournalError
from qwengyre.gateway.journal import Journal, Writer, is_sealed, read_calls, rebuild
from qwengyre.types import Kind, ModelCall, Segment, Stretch


def call(number: int, parent: int, suffix: int = 3, output: int = 2, **fields: Any) -> ModelCall:
    rng = np.random.default_rng(number)
    values: dict[str, Any] = {
        "call": number,
        "thread": "t",
        "parent": parent,
        "suffix": rng.integers(0, 1000, suffix, np.int32),
        "segments": (Segment(Kind.CONTEXT, suffix - 1), Segment(Kind.GLUE, 1)),
        "output": rng.integers(0, 1000, output, np.int32),
        "logprobs": -rng.random(output, np.float32),
        "stretches": (Stretch(0, output, 4, "cell0.1", "stop"),),
        "finish": "stop",
        "temperature": 0.7,
        "request": {"chains": [b"\x00\xff"], "messages": [{"role": "user", "text": "é"}]},
        "response": {"calls": []},
        "timings": {"received": 1.5},
    }
    return ModelCall(**values | fields)


def equal(a: ModelCall, b: ModelCall) -> bool:
    arrays = all(np.array_equal(getattr(a, n), getattr(b, n)) for n in ("suffix", "output", "logprobs"))
    plain = {n: v for n, v in vars(a).items() if not isinstance(v, np.ndarray)}
    return arrays and all(getattr(b, n) == v for n, v in plain.items())


async def write(path: Path, calls: int = 3, sealed: bool = False) -> list[ModelCall]:
    """Calls 0..n-1 in one line; all but the last are delivered."""
    writer = Writer()
    journal = Journal(path, writer, 0)
    made = [call(n, 3 * n - 1) for n in range(calls)]
    journal.opened("0-0")
    for one in made:
        journal.call(one)
        if one.call < calls - 1:
            journal.delivered(one.call)
    if sealed:
        journal.seal()
    await writer.idle()
    journal.close()
    return made


async def test_what_is_written_is_read(tmp_path):
    made = await write(tmp_path / "a.calls", sealed=True)
    log = read_calls(tmp_path / "a.calls")
    assert all(equal(a, b) for a, b in zip(made, log.calls, strict=True))
    assert (log.delivered, log.sealed, log.meta["execution"]) == (frozenset({0, 1}), True, "0-0")
    assert is_sealed(tmp_path / "a.calls")
    assert log.calls[0].output.dtype == np.int32
    assert log.calls[0].logprobs.dtype == np.float32


async def test_the_tree_is_rebuilt_from_the_file_alone(tmp_path):
    made = await write(tmp_path / "a.calls")
    tree = rebuild(tmp_path / "a.calls")
    assert list(tree.leaves()) == [8]
    assert not is_sealed(tmp_path / "a.calls")
    assert tree.withheld == {8}, "the last call was not delivered"
    assert tree.path_ids(8).tolist() == np.concatenate([x for c in made for x in (c.suffix, c.output)]).tolist()


async def test_a_tail_torn_at_any_byte_is_cut_off(tmp_path):
    path = tmp_path / "a.calls"
    await write(path)
    data, whole = path.read_bytes(), read_calls(path)
    for size in range(len(data)):
        path.write_bytes(data[:size])
        log = read_calls(path)
        assert log.size <= size
        assert len(log.calls) <= len(whole.calls)
        assert all(equal(a, b) for a, b in zip(log.calls, whole.calls, strict=False))
    path.write_bytes(data + b"\0" * 64)
    assert len(read_calls(path).calls) == 3


async def test_writing_goes_on_after_a_torn_tail(tmp_path):
    path = tmp_path / "a.calls"
    await write(path)
    size = read_calls(path).size
    path.write_bytes(path.read_bytes()[:-1])
    log = read_calls(path)
    writer = Writer()
    journal = Journal(path, writer, log.size)
    await journal.seal()
    journal.close()
    again = read_calls(path)
    assert again.sealed
    assert again.size != size
    assert len(again.calls) == len(log.calls)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damage_before_a_whole_frame_is_an_error(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("j") / "a.calls"
    asyncio.run(write(path, sealed=True))
    good = bytearray(path.read_bytes())
    last = good.rfind(b"QGf1")
    at = data.draw(st.integers(0, last - 1))
    good[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(bytes(good))
    with pytest.raises(JournalError, match="damaged at byte"):
        read_calls(path)


async def test_a_later_schema_is_refused(tmp_path):
    writer = Writer()
    journal = Journal(tmp_path / "a.calls", writer, 0)
    await journal._append({"type": "open", "schema": 2, "execution": "0-0"})
    journal.close()
    with pytest.raises(JournalError, match="schema 2, this version reads 1"):
        read_calls(tmp_path / "a.calls")


async def test_bytes_are_linear_in_new_tokens(tmp_path):
    """500 turns: at most 1.2 times what ids, log-probs and an overhead of a fixed size a call need."""
    path = tmp_path / "a.calls"
    writer = Writer()
    journal = Journal(path, writer, 0)
    for n in range(500):
        journal.call(call(n, 3 * n - 1, suffix=1000, output=400))
    await writer.idle()
    journal.close()
    tokens = 500 * 1400
    assert path.stat().st_size < 1.2 * (tokens * 4 + 500 * 400 * 4)


async def test_a_record_is_durable_before_its_future_is_done(tmp_path):
    path = tmp_path / "a.calls"
    writer = Writer()
    journal = Journal(path, writer, 0)
    for n in range(5):
        await journal.call(call(n, 3 * n - 1))
        assert len(read_calls(path).calls) == n + 1
    journal.close()


async def test_a_disk_that_fails_fails_the_record_and_every_later_one(tmp_path):
    writer = Writer()
    bad, good = Journal(tmp_path / "a.calls", writer, 0), Journal(tmp_path / "b.calls", writer, 0)
    await bad.opened("0-0")
    bad.close()  # the descriptor is gone: the next write fails as a dead disk's would
    futures = [bad.call(call(0, -1)), good.opened("0-1"), bad.call(call(1, 2))]
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert isinstance(results[0], JournalError)
    assert isinstance(results[2], JournalError)
    assert results[1] is None
    assert str(tmp_path / "a.calls") in str(results[0])
    good.close()
