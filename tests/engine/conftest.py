"""Tiny random models, and a batch that is stepped by hand."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from engine_cases import full_logprobs, llama, qwen3

torch.set_num_threads(1)
CHUNK = 256

MODELS: dict[str, Callable[[], Any]] = {"llama": llama, "qwen3": qwen3}


@pytest.fixture(params=sorted(MODELS))
def model(request: pytest.FixtureRequest) -> Any:
    """Each family in turn, fresh (tests may change the weights)."""
    return MODELS[request.param]()


@pytest.fixture
def one_model() -> Any:
    """A model for tests that do not depend on its family."""
    return qwen3()


@pytest.fixture
def reference() -> Callable[..., torch.Tensor]:
    return full_logprobs


@pytest.fixture
def greedy_reference() -> Callable[..., list[int]]:
    def generate(model: Any, prompt: Any, max_tokens: int) -> list[int]:
        ids = torch.tensor([list(map(int, prompt))])
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False, eos_token_id=None
        )
        return out[0, len(prompt) :].tolist()

    return generate


class Stepped:
    """A `Batch` stepped by hand: no thread, no clock."""

    def __init__(self, model: Any, window: int = 256, max_batch: int = 64, kv_tokens: int | None = None) -> None:
        from qwengyre.engine.batch import Batch
        from qwengyre.engine.forward import choose_decoder, kv_shape

        decoder = choose_decoder(model, window)
        self.batch = Batch(decoder, kv_shape(model), window, max_batch, kv_tokens or 16 * window, CHUNK)
        self.done: dict[str, Any] = {}

    def submit(
        self, name: str, prompt: Any, max_tokens: int, temperature: float = 0.0, seed: int = 0, **kw: Any
    ) -> None:
        import random

        from qwengyre.engine.calls import Call

        def answer(completion: Any) -> None:
            assert name not in self.done, "answered twice"
            self.done[name] = completion

        call = Call(name, np.asarray(prompt, np.int32), max_tokens, temperature, seed=seed, handle=kw.get("handle", ""))
        self.batch.submit(call, random.Random(seed), frozenset(kw.get("stops", ())), answer)

    def run(self, limit: int = 10_000) -> None:
        for _ in range(limit):
            if not len(self.batch):
                return
            self.batch.step()
        raise AssertionError("calls never end")

    def count(self, name: str) -> int:
        return self.batch.counts[name]


@pytest.fixture
def stepped() -> type[Stepped]:
    return Stepped


@pytest.fixture
def chunk() -> int:
    """Prompt tokens a pass in `stepped`."""
    return CHUNK


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)
