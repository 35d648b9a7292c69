"""A tree is frozen once, mapped ever after, and is what its journal says."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
from test_calls_journal import call, write

from qwengyre.gateway.frozen import frozen, read
from qwengyre.gateway.journal import Journal, Writer, read_calls, rebuild
from qwengyre.trajectory.columns import columns
from qwengyre.trajectory.roles import Marker, Table, roles
from qwengyre.trajectory.tree import Tree


def same(a: Tree, b: Tree) -> bool:
    one, two = columns(a), columns(b)
    equal = all(
        x.dtype == y.dtype and np.array_equal(x, y)
        for x, y in zip(one.arrays.values(), two.arrays.values(), strict=True)
    )
    fields = ("parents", "ends", "lengths", "kinds", "calls", "threads", "withheld", "versions", "temperatures")
    return equal and one.threads == two.threads and all(getattr(a, n) == getattr(b, n) for n in fields)


@pytest.fixture
async def journal(tmp_path: Path) -> Path:
    path = tmp_path / "0-0.calls"
    await write(path, 5, sealed=True)
    return path


async def test_a_frozen_tree_is_the_rebuilt_one(journal: Path) -> None:
    found = frozen(journal)
    tree, again = found.tree(), rebuild(journal)
    assert same(tree, again)
    assert found.roles == roles(again, read_calls(journal).calls)
    assert found.calls == 5
    assert list(tree.leaves()) == list(again.leaves())
    assert tree.withheld, "the last call was never delivered"


async def test_it_is_made_once_and_then_mapped(journal: Path) -> None:
    frozen(journal)
    made = journal.with_suffix(".tree").stat()
    found = frozen(journal)
    assert journal.with_suffix(".tree").stat().st_ino == made.st_ino
    base = found.columns.arrays["ids"]
    while base.base is not None and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap), "tokens are file pages, not memory"
    assert found.tree().all_ids.base is not None


async def test_another_journal_or_table_makes_it_again(journal: Path) -> None:
    before = frozen(journal)
    table = Table(markers=(Marker("auxiliary", "first_user", "é"),))
    assert {role.role for role in frozen(journal, table).roles.values()} == {"auxiliary"}
    assert frozen(journal).roles == before.roles
    writer = Writer()
    grown = Journal(journal, writer, read_calls(journal).size)
    grown.call(call(5, 14))
    await writer.idle()
    grown.close()
    assert frozen(journal).calls == 6
    assert same(frozen(journal).tree(), rebuild(journal))


async def test_a_file_that_is_torn_or_foreign_is_made_again(journal: Path) -> None:
    frozen(journal)
    path = journal.with_suffix(".tree")
    whole = path.read_bytes()
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        assert read(path) is None
    path.write_bytes(b"QGtree99" + whole[8:])
    assert same(frozen(journal).tree(), rebuild(journal))
    assert not list(path.parent.glob("*.part"))


async def test_a_mapped_tree_may_grow_and_its_file_does_not(journal: Path) -> None:
    tree = frozen(journal).tree()
    whole = journal.with_suffix(".tree").read_bytes()
    tree.add_call(call(5, 14, output=0))
    tree.add_call(call(6, 16))
    other = rebuild(journal)
    other.add_call(call(5, 14, output=0))
    other.add_call(call(6, 16))
    assert same(tree, other)
    assert journal.with_suffix(".tree").read_bytes() == whole


async def test_an_execution_without_calls_is_an_empty_tree(tmp_path: Path) -> None:
    await write(tmp_path / "0-1.calls", 0, sealed=True)
    found = await asyncio.to_thread(frozen, tmp_path / "0-1.calls")
    assert (found.calls, len(found.tree()), found.roles) == (0, 0, {})


async def test_a_full_disk_costs_memory_and_no_run(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("qwengyre.gateway.frozen.os.fsync", full)
    found = frozen(journal)
    assert same(found.tree(), rebuild(journal))
    assert [path.name for path in journal.parent.iterdir()] == [journal.name]
