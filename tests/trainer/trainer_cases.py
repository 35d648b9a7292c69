"""Hand-made micro-steps and how gradients are compared."""

import numpy as np
import torch

from qwengyre.types import MicroStep

RECORDED = -5.55
"""About the log-probability of any token under the tiny model, which is nearly uniform over 259 tokens."""


def sequence(rng: np.random.Generator, length: int, targets: int, weight: float) -> MicroStep:
    """One sequence whose last `targets` tokens are targets; recorded log-probs near the model's."""
    weights = np.zeros(length, np.float32)
    weights[length - targets :] = weight
    recorded = (RECORDED + 0.3 * rng.standard_normal(length)).astype(np.float32)
    ids = rng.integers(0, 256, length).astype(np.int32)
    return MicroStep("one", 0, ids, (length,), weights, recorded, 0.8)


def joined(name: str, parts: list[MicroStep]) -> MicroStep:
    return MicroStep(
        name=name,
        group=0,
        ids=np.concatenate([p.ids for p in parts]),
        lengths=tuple(length for p in parts for length in p.lengths),
        weights=np.concatenate([p.weights for p in parts]),
        logprobs=np.concatenate([p.logprobs for p in parts]),
        temperature=parts[0].temperature,
    )


def gradient_of(trainer, micro_steps: list[MicroStep]) -> torch.Tensor:
    """The gradient of these micro-steps as one flat float64 vector; the trainer is left without one."""
    trainer.wake()
    for micro_step in micro_steps:
        trainer.accumulate(micro_step)
    flat = torch.cat([g.double().flatten() for _, g in sorted(trainer.gradient().items())])
    trainer.sleep()
    return flat


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Norm of the difference over the norm."""
    return float((a - b).norm() / b.norm())


def random_tree(rng: np.random.Generator, runs: int, longest: int) -> MicroStep:
    """A tree (or several) of random shape; half of the tokens are targets, with weights of both signs."""
    lengths: list[int] = []
    parents: list[int] = []
    path: list[int] = []
    size = 0
    for _ in range(runs):
        path = path[: int(rng.integers(0, len(path) + 1))]
        parents.append(path[-1] if path else -1)
        lengths.append(int(rng.integers(1, longest)))
        path = [*path, *range(size, size + lengths[-1])]
        size += lengths[-1]
    starts = np.cumsum([0, *lengths[:-1]])
    weights = 0.1 * rng.standard_normal(size) * (rng.random(size) < 0.5)
    weights[starts[np.array(parents) < 0]] = 0
    return MicroStep(
        name="g0.0",
        group=0,
        ids=rng.integers(0, 250, size).astype(np.int32),
        lengths=tuple(lengths),
        weights=weights.astype(np.float32),
        logprobs=(RECORDED + 0.3 * rng.standard_normal(size)).astype(np.float32),
        temperature=0.8,
        parents=tuple(parents),
    )
