"""The fp32 trainer for any causal transformers model: forward, loss, backward, AdamW, checkpoints. Full or LoRA.

It shares its parameters with the cell's engine: they are updated in place and never replaced. Logits are computed only
where a target needs them, because a vocabulary times a sequence is the largest array of a small model.
"""

import copy
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from qwengyre.errors import MachineError, RunError
from qwengyre.quiet import no_bars
from qwengyre.trainer.batch import Batch, batches, tree_batch
from qwengyre.trainer.forward import forward, runs_trees
from qwengyre.trainer.lora import Adapters, Lora
from qwengyre.trainer.loss import LOSSES, Targets, beside, entropy, measured, target_logprobs
from qwengyre.trainer.shape import tree_depth
from qwengyre.trajectory.runs import calls, depths, flattened
from qwengyre.types import Floats, Ids, MicroStep

if TYPE_CHECKING:
    from transformers import PreTrainedModel

STATE = "trainer_state.pt"
BETAS = (0.9, 0.95)
"""AdamW's decay rates; the second is lower than usual because a run has few, noisy steps."""
SUMS = ("tokens", "targets", "loss", "mismatch_kl", "clipped", "ratio", "ratio_squared", "entropy")
_COPIED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "generation_config.json",
)


class TorchTrainer:
    """Implements `trainer.base.Trainer` for one process on a CPU.

    `optimizer` is True on the core cell only. `source` is the HF folder whose tokenizer files go into checkpoints.
    `clip`: the lowest and highest ratio that `loss` follows, if not its own.
    With `lora`, the model gets adapters, in place, and they alone are trained, shared and saved.
    `kl` and `entropy`: coefficients of the KL divergence from the model as it is given here, and of the entropy.
    """

    def __init__(  # noqa: PLR0913 - all but the model are named at every call
        self,
        model: "PreTrainedModel",
        *,
        loss: str = "cispo",
        clip: tuple[float, float] | None = None,
        weight_decay: float = 0.0,
        clip_norm: float = 1.0,
        optimizer: bool = True,
        source: Path | None = None,
        lora: Lora | None = None,
        kl: float = 0.0,
        entropy: float = 0.0,
    ) -> None:
        self._model = model
        self._kl, self._entropy = kl, entropy
        self._reference = copy.deepcopy(model).requires_grad_(False) if kl and not (lora and lora.rank) else model
        self._adapters = Adapters(model, lora) if lora is not None and lora.rank else None
        self._loss = LOSSES[loss].formula
        self._clip = clip or (LOSSES[loss].low, LOSSES[loss].high)
        self._clip_norm = clip_norm
        self._source = source
        self._tree_depth: int | None = None  # not known before the first tree comes
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        assert all(p.dtype == torch.float32 for p in self._parameters.values()), "parameters must be fp32"
        self._optimizer = (
            torch.optim.AdamW(self._parameters.values(), lr=0.0, betas=BETAS, weight_decay=weight_decay, fused=True)
            if optimizer
            else None
        )

    def wake(self) -> None:
        """Nothing to take: gradients are allocated by the first backward pass."""

    def sleep(self) -> None:
        """Drop the gradient; parameters and optimizer state stay."""
        self._model.zero_grad(set_to_none=True)

    def accumulate(self, micro_step: MicroStep) -> dict[str, float]:
        """Add the gradient of `micro_step`; returns the sums that `trainer.base` names. Without weights: no work."""
        sums: dict[str, float] = dict.fromkeys(SUMS, 0.0)
        if micro_step.parents and not self._can_share(micro_step):
            micro_step = flattened(micro_step)
        sums["tokens"] = float(micro_step.tokens)
        ids = torch.from_numpy(micro_step.ids.astype(np.int64))
        weights = torch.tensor(micro_step.weights)
        recorded = torch.tensor(micro_step.logprobs)
        shares = torch.zeros_like(weights) if micro_step.shares is None else torch.tensor(micro_step.shares)
        of_call = torch.from_numpy(calls(micro_step))
        for batch in self._batches(micro_step, ids):
            at = batch.targets_N
            reference_NV = self._reference_logits(batch) if self._kl else None
            logits_NV = self._logits(batch)
            logp_N = target_logprobs(logits_NV, ids[at], micro_step.temperature)
            targets = Targets(logp_N, recorded[at], weights[at], of_call[at])
            loss, clipped_N = self._loss(targets, *self._clip)
            if self._kl or self._entropy:
                kl_N, entropy_N = beside(logits_NV, reference_NV, micro_step.temperature)
                loss = loss + (shares[at] * (self._kl * kl_N - self._entropy * entropy_N)).sum()
                sums["reference_kl"] = sums.get("reference_kl", 0.0) + float(kl_N.detach().sum())
            entropy_sum = entropy(logits_NV.detach(), micro_step.temperature)
            del logits_NV
            loss.backward()
            found = {"targets": float(len(at)), "loss": float(loss.detach()), "entropy": entropy_sum}
            for name, value in (found | measured(targets, clipped_N)).items():
                sums[name] += value
        return sums

    @torch.no_grad()
    def logprobs(self, ids: Ids, lengths: tuple[int, ...], temperature: float) -> Floats:
        """fp32 log-probability of each token given those before it in its sequence (float32, T); 0 for the first."""
        assert sum(lengths) == len(ids), (sum(lengths), len(ids))
        flat = torch.from_numpy(ids.astype(np.int64))
        found = torch.zeros(len(flat))
        start = 0
        for length in lengths:  # one sequence at a time bounds the logits
            wanted = np.ones(length, np.bool_)
            wanted[:1] = False
            own = flat[start : start + length]
            for batch in batches(own, (length,), wanted):
                at = batch.targets_N
                found[start + at] = target_logprobs(self._logits(batch), own[at], temperature)
            start += length
        return found.numpy()

    @torch.no_grad()
    def optimizer_step(self, scale: float, learning_rate: float) -> dict[str, float]:
        """One AdamW step on gradient x scale, its norm clipped, then an empty gradient.

        A zero gradient (or none) leaves parameters and optimizer as they are. Returns grad_norm (of gradient x scale,
        before clipping) and stepped (0 or 1). Raises RunError when the gradient is not finite.
        """
        assert self._optimizer is not None, "only the core's trainer has an optimizer"
        gradients = [p.grad for p in self._parameters.values() if p.grad is not None]
        norm = float(nn.utils.get_total_norm(gradients)) * scale if gradients else 0.0
        if not np.isfinite(norm):
            raise RunError(f"the gradient's norm is {norm}; lower trainer.learning_rate and resume from a checkpoint")
        if norm == 0:
            self._model.zero_grad(set_to_none=True)
            return {"grad_norm": 0.0, "stepped": 0.0}
        factor = scale * min(1.0, self._clip_norm / norm)
        for gradient in gradients:
            gradient.mul_(factor)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        self._model.zero_grad(set_to_none=True)
        return {"grad_norm": norm, "stepped": 1.0}

    def gradient(self) -> dict[str, Any]:
        """Name -> gradient (a reference); zeros where nothing was added. Tied parameters appear once."""
        for parameter in self._parameters.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return {name: p.grad for name, p in self._parameters.items()}

    @torch.no_grad()
    def add(self, gradient: Mapping[str, Any]) -> None:
        """Add another trainer's gradient, all of it or (KeyError) nothing."""
        if gradient.keys() != self._parameters.keys():
            raise KeyError(f"a gradient of {len(gradient)} tensors for {len(self._parameters)} parameters")
        for name, own in self.gradient().items():
            own.add_(gradient[name])

    def parameters(self) -> dict[str, Any]:
        """Name -> parameter, those that are trained. Tied parameters appear once."""
        return dict(self._parameters)

    def save(self, folder: Path) -> None:
        """Write a HF folder (with LoRA: of the adapters) and `trainer_state.pt` (optimizer, RNG) into the existing
        `folder`. Changes nothing."""
        with no_bars():
            if self._adapters is None:
                self._model.save_pretrained(folder)
            else:
                self._adapters.save(folder)
        for file in (self._source / name for name in _COPIED) if self._source else ():
            if file.is_file():
                shutil.copyfile(file, folder / file.name)
        state = {
            "format": 1,
            "optimizer": self._optimizer.state_dict() if self._optimizer else None,
            "rng": torch.get_rng_state(),
        }
        torch.save(state, folder / STATE)

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Restore what `save` wrote, in place. A trainer without optimizer takes weights and RNG only.

        Raises MachineError when a file is missing or belongs to another model.
        """
        try:
            if self._adapters is None:
                self._load_weights(folder)
            else:
                self._adapters.load(folder)
            state = torch.load(folder / STATE, weights_only=True)
        except (OSError, KeyError, RuntimeError) as error:
            raise MachineError(f"checkpoint {folder} does not fit this model ({error}); resume from another") from None
        if self._optimizer is not None and state["optimizer"] is not None:
            self._optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"])
        self._model.zero_grad(set_to_none=True)

    def _load_weights(self, folder: Path) -> None:
        from safetensors.torch import load_file

        missing = set(self._parameters)
        own = self._model.state_dict()
        for file in sorted(folder.glob("*.safetensors")):
            for name, tensor in load_file(file).items():
                own[name].copy_(tensor)
                missing.discard(name)
        if missing:
            raise KeyError(sorted(missing)[0])

    def _can_share(self, micro_step: MicroStep) -> bool:
        """Whether this model gives the tree's gradient in one pass; what the packing assumed of it is not trusted."""
        if self._tree_depth is None:
            limit = tree_depth(self._model.config.to_dict())
            self._tree_depth = limit if limit and runs_trees(self._model) else 0
        return int(depths(micro_step).max()) < self._tree_depth

    def _batches(self, micro_step: MicroStep, ids: Tensor) -> list[Batch]:
        wanted = micro_step.wanted
        if not micro_step.parents:
            return batches(ids, micro_step.lengths, wanted)
        return [tree_batch(micro_step, wanted)] if wanted.any() else []

    def _logits(self, batch: Batch) -> Tensor:
        """Logits, N x V, at `batch.rows_N` only."""
        return _narrowed(self._model, batch)

    @torch.no_grad()
    def _reference_logits(self, batch: Batch) -> Tensor:
        """The same of the model that training began with."""
        with self._adapters.off() if self._adapters else nullcontext():
            return _narrowed(self._reference, batch)


def _narrowed(model: "PreTrainedModel", batch: Batch) -> Tensor:
    head = model.get_output_embeddings()
    assert head is not None, "a causal model has output embeddings"
    with _only(head, batch.rows_N):
        return forward(model, batch)


@contextmanager
def _only(head: nn.Module, rows_N: Tensor) -> Iterator[None]:
    """The head sees only these rows of its input meanwhile; whatever a model does to its logits still happens."""
    hook = head.register_forward_pre_hook(lambda _, given: (given[0].flatten(0, 1)[rows_N],))
    try:
        yield
    finally:
        hook.remove()
