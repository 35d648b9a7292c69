"""The emulated trainer counts and takes its time; it has nothing to share."""

from pathlib import Path

import numpy as np

from qwengyre.trainer.emulated import SUMS, EmulatedTrainer
from qwengyre.types import MicroStep


def micro_step(tokens: int) -> MicroStep:
    weights = np.zeros(tokens, np.float32)
    weights[1::2] = 0.5
    ids, logprobs = np.zeros(tokens, np.int32), np.zeros(tokens, np.float32)
    return MicroStep("0/0", 0, ids, (tokens,), weights, logprobs, 1.0)


def test_what_it_says_of_a_micro_step() -> None:
    trainer = EmulatedTrainer(None, tokens_per_s=1e6, loss="cispo", optimizer=True)
    sums = trainer.accumulate(micro_step(100))
    assert set(sums) == set(SUMS)
    assert (sums["tokens"], sums["targets"], sums["mismatch_kl"]) == (100.0, 50.0, 0.0)
    assert trainer.parameters() == trainer.gradient() == {}


def test_a_checkpoint_keeps_its_steps(tmp_path: Path) -> None:
    trainer = EmulatedTrainer(None, optimizer_s=0.0)
    assert trainer.optimizer_step(1.0, 0.1)["grad_norm"] == 0.0
    trainer.save(tmp_path)
    other = EmulatedTrainer(None)
    other.load(tmp_path)
    other.save(tmp_path)
    assert (tmp_path / "emulated.json").read_text() == '{"steps": 1}'
