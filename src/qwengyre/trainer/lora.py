"""Low-rank adapters instead of full fine-tuning, by `peft`: y = W x + (alpha / rank) B A x, where only A and B train.

They are put into the model's own linear layers in place, so the engine that shares the model serves them as they are,
never merged: weights that are published, gradients, optimizer state and checkpoints are those of A and B alone.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qwengyre.errors import ConfigError, MachineError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


@dataclass(frozen=True)
class Lora:
    """`rank` 0: none. `targets`: names of linear layers; () means all but the output embeddings. `seed`: of A; B begins
    at 0, so that a run begins with the model as it is."""

    rank: int
    alpha: float
    targets: tuple[str, ...] = ()
    seed: int = 0


def check(lora: Lora, base: Path) -> None:
    """Whether adapters of the model in the folder `base` can be trained. Raises MachineError or ConfigError."""
    _require(lora)
    if lora.rank and (base / CONFIG).is_file():
        raise ConfigError(
            f"trainer.lora_rank={lora.rank}, but {base} is an adapter itself: continue its run with --resume, or set "
            "trainer.lora_rank=0, which merges it and trains all weights"
        )


def _require(lora: Lora) -> None:
    if lora.rank and find_spec("peft") is None:
        raise MachineError(f"trainer.lora_rank={lora.rank} needs the package peft; pip install 'qwengyre[lora]'")


class Adapters:
    """The adapters of `model`, which it has from now on; its other parameters are frozen."""

    def __init__(self, model: "PreTrainedModel", lora: Lora) -> None:
        _require(lora)
        import torch
        from peft import LoraConfig, get_peft_model

        config = LoraConfig(
            r=lora.rank,
            lora_alpha=lora.alpha,  # pyright: ignore - any number will do
            target_modules=list(lora.targets) or _linear_layers(model),
            task_type="CAUSAL_LM",
        )
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers in yesterday's words
            torch.manual_seed(lora.seed)
            try:
                self._model: Any = get_peft_model(model, config)
            except ValueError as error:
                said = str(error).splitlines()[0][:200]
                raise ConfigError(f"trainer.lora_targets={list(lora.targets)}: {said}") from None
        model.eval()

    @contextmanager
    def off(self) -> Iterator[None]:
        """The base model meanwhile."""
        with self._model.disable_adapter():
            yield

    def save(self, folder: Path) -> None:
        """Write the adapters as `peft` keeps them, with the path of the model that they belong to. No `config.json`: it
        would make transformers look for the whole model's weights."""
        self._model.save_pretrained(folder, save_embedding_layers=False)
        (folder / "README.md").unlink(missing_ok=True)

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote, in place, all of it or (KeyError, OSError) nothing."""
        from peft import get_peft_model_state_dict
        from safetensors.torch import load_file

        own: dict[str, Any] = get_peft_model_state_dict(self._model, save_embedding_layers=False)
        weights = load_file(folder / WEIGHTS)
        for name in own.keys() | weights.keys():
            if name not in own or name not in weights or own[name].shape != weights[name].shape:
                raise KeyError(name)
        for name, tensor in weights.items():
            own[name].copy_(tensor)


def _linear_layers(model: "PreTrainedModel") -> list[str]:
    """Names of all linear layers but the output embeddings, each once: `q_proj`, ..."""
    from torch import nn

    head = model.get_output_embeddings()
    found = (name for name, module in model.named_modules() if isinstance(module, nn.Linear) and module is not head)
    return sorted({name.rpartition(".")[2] for name in found})
