"""Cells that train adapters: they alone travel, and what is served is what is trained."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from fleet import Fleet, distance, group

from qwengyre.trainer.lora import Lora
from qwengyre.trainer.torch import TorchTrainer

PROMPT = list(range(20, 70))


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    torch.set_num_threads(1)
    made = await Fleet(tmp_path, 2, Lora(rank=4, alpha=8.0)).start()
    yield made
    await made.stop()


async def generate(fleet: Fleet, cell: int) -> dict[str, Any]:
    body = {
        "request_id": f"r{cell}",
        "token_ids": PROMPT,
        "sampling_params": {"max_tokens": 24, "temperature": 0.7, "stop_token_ids": [], "seed": 5},
        "handle": "0-0",
    }
    async with httpx.AsyncClient(timeout=60) as client:
        answer = await client.post(f"{fleet.crew.live[cell].report.url}/inference/v1/generate", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


async def both_train(fleet: Fleet, step: int) -> None:
    data = group(step, 8)
    for cell in (0, 1):
        await fleet.join(cell)
    await fleet.open(step, {step: data})
    await fleet.trained(step, len(data))
    assert distance(fleet.gradient(), fleet.expected(data)) < 1e-6
    assert [name for name, *_ in fleet.hands[1].calls].count("flush") >= 1
    await fleet.training.close(step)


def trainer_of(fleet: Fleet, cell: int) -> TorchTrainer:
    trainer = fleet.cell(cell)._trainer_
    assert isinstance(trainer, TorchTrainer)
    return trainer


async def test_two_cells_train_adapters_and_serve_them(fleet: Fleet, tmp_path: Path) -> None:
    for step in range(2):  # B is 0 in the first, so A moves in the second
        await both_train(fleet, step)
        await fleet.training.publish(step + 1, step + 1)
        for cell in (0, 1):
            await fleet.leave(cell)
    assert fleet.training.published is not None
    trained = sum(p.nbytes for p in trainer_of(fleet, 0).parameters().values())
    assert fleet.training.published.ticket.num_bytes == trained
    assert trained < sum(p.nbytes for p in trainer_of(fleet, 0)._model.parameters()) / 5
    assert torch.equal(fleet.weights(1), fleet.weights(0))
    choice = await generate(fleet, 1)
    ids = np.array([*PROMPT, *choice["token_ids"]], np.int32)
    recorded = np.array([entry["logprob"] for entry in choice["logprobs"]["content"]])
    again = trainer_of(fleet, 0).logprobs(ids, (len(ids),), 0.7)[len(PROMPT) :]
    assert np.abs(recorded - again).max() < 1e-4


async def test_a_cell_continues_from_a_checkpoint_of_adapters(fleet: Fleet, tmp_path: Path) -> None:
    await both_train(fleet, 0)
    folder = tmp_path / "checkpoints" / "step-000001"
    await fleet.cell(0).save(folder)
    assert (folder / "adapter_model.safetensors").exists()
    assert not (folder / "model.safetensors").exists()
    expected, momenta = fleet.weights(0), moments(trainer_of(fleet, 0))
    fresh = fleet._cell(0)
    try:
        await fresh.start(5, folder)
        trainer = fresh._trainer_
        assert isinstance(trainer, TorchTrainer)
        found = torch.cat([p.detach().double().flatten() for _, p in sorted(trainer.parameters().items())])
        assert torch.equal(found, expected)
        assert all(torch.equal(a, b) for a, b in zip(moments(trainer), momenta, strict=True))
        assert len(momenta) == len(trainer.parameters())
    finally:
        await fresh.stop()


def moments(trainer: TorchTrainer) -> list[torch.Tensor]:
    assert trainer._optimizer is not None
    return [state["exp_avg"].clone() for state in trainer._optimizer.state.values()]
