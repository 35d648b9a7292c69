"""Fixtures of the gateway's tests: a tokenizer, a scripted engine, and a gateway that uses both."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from gateway_doubles import Harness, ScriptedEngine, make_tokenizer
from transformers import PreTrainedTokenizerFast

from qwengyre.gateway.render import TemplateRenderer


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer()


@pytest.fixture(scope="session")
def renderer(tokenizer: PreTrainedTokenizerFast) -> TemplateRenderer:
    return TemplateRenderer(tokenizer)


@pytest.fixture
async def engine(tokenizer: PreTrainedTokenizerFast) -> AsyncIterator[ScriptedEngine]:
    engine = ScriptedEngine()
    engine.encode = lambda text: tokenizer.encode(text, add_special_tokens=False)
    await engine.start()
    yield engine
    await engine.stop()


@pytest.fixture
def make_harness(tmp_path: Path, renderer: TemplateRenderer) -> Callable[..., Harness]:
    return lambda sub="", **settings: Harness(tmp_path / sub, renderer, **settings)


@pytest.fixture
async def harness(make_harness: Callable[..., Harness], engine: ScriptedEngine) -> AsyncIterator[Harness]:
    harness = make_harness()
    await harness.start()
    await harness.route(engine)
    yield harness
    await harness.stop()
