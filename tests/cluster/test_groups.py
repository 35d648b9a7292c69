"""Groups: the same micro-steps whenever they are asked for; what waits takes no memory."""

from pathlib import Path

import numpy as np
import pytest

from qwengyre.cluster import groups as module
from qwengyre.cluster.groups import Groups
from qwengyre.gateway.journal import Journal, Writer
from qwengyre.schedule.events import Settled
from qwengyre.trajectory.pack import Recipe
from qwengyre.trajectory.roles import Table
from qwengyre.types import ExecutionId, Kind, MicroStep, ModelCall, Segment, Stretch, Verdict


async def journal(folder: Path, execution: ExecutionId, calls: int = 2) -> None:
    writer = Writer()
    made = Journal(folder / f"{execution}.calls", writer, 0)
    made.opened(str(execution))
    for n in range(calls):
        seeds = np.random.default_rng([*execution, n])
        signals = {"header:kind": "side"} if n == 1 else {}
        made.call(
            ModelCall(
                call=n,
                thread="t",
                parent=-1,
                suffix=seeds.integers(0, 99, 5, np.int32),
                segments=(Segment(Kind.CONTEXT, 5),),
                output=seeds.integers(0, 99, 3 + n, np.int32),
                logprobs=np.full(3 + n, -1, np.float32),
                stretches=(Stretch(0, 3 + n, 0, "cell0.0", "stop"),),
                finish="stop",
                temperature=1.0,
                request={"signals": signals},
            )
        )
        made.delivered(n)
    made.seal()
    await writer.idle()
    made.close()


@pytest.fixture
async def groups(tmp_path: Path) -> Groups:
    found = Groups(tmp_path, 2, Recipe(0, 5, 1024, 512))
    for group in range(3):
        for member in range(2):
            await journal(tmp_path, ExecutionId(group, member))
            found.settle(Settled(0.0, ExecutionId(group, member), Verdict.SCORED, float(member)))
    return found


def same(a: list[MicroStep], b: list[MicroStep]) -> bool:
    arrays = all(
        np.array_equal(getattr(x, name), getattr(y, name))
        for x, y in zip(a, b, strict=True)
        for name in ("ids", "weights", "logprobs", "calls")
    )
    return arrays and [(m.name, m.lengths, m.parents) for m in a] == [(m.name, m.lengths, m.parents) for m in b]


async def test_what_waits_is_dropped_and_made_again_the_same(groups: Groups, monkeypatch) -> None:
    monkeypatch.setattr(module, "WAITING_TOKENS", 40)
    first = [await groups.weigh(group) for group in range(3)]
    assert set(groups._weighed) == {0}, "the oldest is the next to be trained"
    admitted = [await groups.weigh(group, admitted=True) for group in range(3)]
    assert all(map(same, first, admitted))
    assert set(groups._weighed) == {0, 1, 2}
    assert groups.summary(2, 0).targets == 14


def names(folder: Path, kind: str) -> set[str]:
    return {path.stem for path in folder.glob(f"*.{kind}")}


async def test_trees_lie_on_disk_until_the_step_is_closed(groups: Groups, tmp_path: Path) -> None:
    (micro_step,) = await groups.weigh(1, admitted=True)
    assert names(tmp_path, "tree") == {"1-0", "1-1"}
    groups.forget(1)
    assert not names(tmp_path, "tree")
    assert len(names(tmp_path, "calls")) == 6
    (again,) = await groups.weigh(1)
    assert same([micro_step], [again])


async def test_the_harness_own_table_says_what_never_trains(groups: Groups, tmp_path: Path) -> None:
    table = Table(kinds={"header:kind": {"side": "auxiliary"}})
    told = Groups(tmp_path, 2, groups.recipe, table)
    told._settled = groups._settled
    for found, targets in ((groups, 14), (told, 6)):
        await found.weigh(0, admitted=True)
        assert found.summary(0, 0).targets == targets
