"""A cell without Ray: one parameter set, served and trained in turn."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from qwengyre.cluster.cell import Cell, CellSpec, draw_incarnation
from qwengyre.model import load
from qwengyre.types import MicroStep

PROMPT = [72, 101, 108, 108, 111]


@pytest.fixture
async def cell(tmp_path: Path) -> AsyncIterator[Cell]:
    folder = load.resolve("tiny")
    spec = CellSpec(0, tmp_path, folder, 256, load.eos_ids(folder), executions=8, seed=0)
    cell = Cell(spec)
    yield cell
    await cell.stop()


async def generate(url: str, **sampling: Any) -> httpx.Response:
    body = {
        "request_id": "r",
        "token_ids": PROMPT,
        "sampling_params": {"max_tokens": 8, "temperature": 1.0, "stop_token_ids": [], "seed": 5, **sampling},
        "handle": "0-0",
    }
    async with httpx.AsyncClient() as client:
        return await client.post(f"{url}/inference/v1/generate", json=body)


def as_micro_step(choice: dict[str, Any]) -> MicroStep:
    """The sampled tokens as targets of weight 1."""
    output = [t["token_id"] for t in choice["logprobs"]["content"]]
    recorded = [t["logprob"] for t in choice["logprobs"]["content"]]
    ids = np.array(PROMPT + output, np.int32)
    weights = np.r_[np.zeros(len(PROMPT)), np.ones(len(output))].astype(np.float32)
    logprobs = np.r_[np.zeros(len(PROMPT)), recorded].astype(np.float32)
    return MicroStep("g0.0", 0, ids, (len(ids),), weights, logprobs, 1.0)


async def test_roll_train_publish_roll(cell: Cell) -> None:
    url = (await cell.start(0, None)).url
    assert (await generate(url)).status_code == 409, "closed until it rolls"
    await cell.roll(0)
    first = (await generate(url)).json()["choices"][0]
    assert first["weight_versions"] == [{"version": "0", "start": 0, "end": len(first["token_ids"])}]

    await cell.shut()
    assert (await generate(url)).status_code == 409
    assert (await cell.drain()).calls == 0
    await cell.train()
    sums = await cell.accumulate(as_micro_step(first), 0)
    assert sums["targets"] == len(first["token_ids"])
    assert sums["mismatch_kl"] / sums["targets"] < 1e-6, "the trainer recomputes what the engine recorded"
    assert (await cell.close_step(0, 1.0, 1e-2))["grad_norm"] > 0

    await cell.publish(1)
    await cell.roll(1)
    second = (await generate(url)).json()["choices"][0]
    assert second["weight_versions"][0]["version"] == "1"
    before = {t["token_id"]: t["logprob"] for t in first["logprobs"]["content"][:1]}
    after = {t["token_id"]: t["logprob"] for t in second["logprobs"]["content"][:1]}
    assert before != after, "the engine samples from the updated parameters"


async def test_a_checkpoint_is_complete_or_absent_and_a_new_cell_continues_from_it(cell: Cell, tmp_path: Path) -> None:
    url = (await cell.start(0, None)).url
    await cell.roll(0)
    first = (await generate(url)).json()["choices"][0]
    await cell.shut()
    await cell.drain()
    await cell.train()
    await cell.accumulate(as_micro_step(first), 0)
    await cell.close_step(0, 1.0, 1e-2)
    folder = tmp_path / "checkpoints" / "step-000001"
    await cell.save(folder)
    assert sorted(p.name for p in folder.parent.iterdir()) == ["step-000001"]
    await cell.roll(1)
    expected = (await generate(url)).json()["choices"][0]["token_ids"]

    again = Cell(cell.spec)
    assert again.incarnation == cell.incarnation + 1
    try:
        url = (await again.start(1, folder)).url
        await again.roll(1)
        assert (await generate(url)).json()["choices"][0]["token_ids"] == expected
    finally:
        await again.stop()


def test_incarnations_grow_and_are_never_drawn_twice(tmp_path: Path) -> None:
    assert [draw_incarnation(tmp_path, "cell-0") for _ in range(3)] == [0, 1, 2]
    assert draw_incarnation(tmp_path, "cell-1") == 0


async def test_a_cell_without_a_model_answers_and_trains(tmp_path: Path) -> None:
    spec = CellSpec(
        0, tmp_path, tmp_path / "no model", 256, (258,), executions=8, seed=0, engine="emulated", trainer="emulated",
        engine_args={"time_scale": 100.0}, trainer_args={"time_scale": 100.0},
    )  # fmt: skip
    cell = Cell(spec)
    url = (await cell.start(0, None)).url
    await cell.roll(0)
    said = (await generate(url)).json()["choices"][0]
    await cell.shut()
    await cell.drain()
    await cell.train()
    assert (await cell.accumulate(as_micro_step(said), 0))["targets"] == len(said["token_ids"])
    assert (await cell.close_step(0, 1.0, 1e-2))["grad_norm"] == 0
    await cell.publish(1)
    await cell.roll(1)
    assert (await generate(url)).json()["choices"][0]["weight_versions"][0]["version"] == "1"
    await cell.stop()


async def test_weights_are_told_while_a_micro_step_holds_the_trainer(cell: Cell) -> None:
    await cell.start(0, None)
    first = await cell.expose()
    busy, free = threading.Event(), threading.Event()

    def work() -> None:
        busy.set()
        free.wait()

    working = asyncio.ensure_future(cell._blocking(work))
    assert await asyncio.to_thread(busy.wait, 60)
    try:
        assert await asyncio.wait_for(cell.expose(), 60) == first, "a cell that joins need not wait"
        publishing = asyncio.ensure_future(cell.expose(1))
        await asyncio.sleep(0)
        assert not publishing.done(), "a publish takes its turn"
    finally:
        free.set()
    await working
    assert (await publishing).version == 1
