from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from qwengyre.model.load import causal_lm, resolve


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return resolve("tiny", cache=tmp_path_factory.mktemp("cache"))


@pytest.fixture
def model(folder: Path) -> PreTrainedModel:
    return causal_lm(folder)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)
