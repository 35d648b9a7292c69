"""The gateway over the real embedded engine and the tiny model: log-probs and ids agree with the model itself."""

from pathlib import Path

import numpy as np
import pytest
import torch
from gateway_doubles import Harness, conditioning, system, user

from qwengyre.engine.embedded import EmbeddedEngine
from qwengyre.gateway.journal import read_calls, rebuild
from qwengyre.gateway.render import TemplateRenderer
from qwengyre.model import load
from qwengyre.types import Place, Routes, Sampling


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return load.resolve("tiny", cache=tmp_path_factory.mktemp("models"))


async def test_conditioning_and_log_probs_are_the_models_own(folder: Path, tmp_path: Path):
    model = load.causal_lm(folder)
    window = 512
    engine = EmbeddedEngine(model, name="cell0.0", eos_ids=load.eos_ids(folder), window=window, version=3)
    url = await engine.start()
    await engine.open()
    renderer = TemplateRenderer(load.tokenizer(folder))
    harness = Harness(tmp_path, renderer, window=window, sampling=Sampling(temperature=0.7, max_tokens=12))
    await harness.start()
    await harness.gateway.route(Routes(1, {0: Place(url, 0)}, {"0-0": 0}))
    talk = [system("s"), user("u")]
    for turn in range(3):
        talk += [await harness.say(talk), user(f"more {turn}")]
    await harness.gateway.seal("0-0")
    await harness.stop()
    await engine.stop()

    log = read_calls(harness.journal)
    assert len(list(rebuild(harness.journal).leaves())) == 1
    for call in log.calls:
        prompt = conditioning(log)[call.call]
        ids = np.concatenate([prompt, call.output]).astype(np.int64)
        with torch.no_grad():
            logits = model(torch.from_numpy(ids)[None]).logits[0].float() / 0.7
        expected = torch.log_softmax(logits, -1)[len(prompt) - 1 : -1].gather(
            1, torch.tensor(ids[len(prompt) :])[:, None]
        )
        assert np.abs(expected[:, 0].numpy() - call.logprobs).max() < 1e-3
        assert all((s.version, s.engine) == (3, "cell0.0") for s in call.stretches)
