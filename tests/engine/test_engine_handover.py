"""Keys and values leave an engine and arrive at another: what moves, is refused, waits, is freed."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import numpy as np
import pytest
import torch
from engine_cases import full_logprobs, llama, qwen3

from qwengyre.engine.base import HandsOver
from qwengyre.engine.calls import Call, Span
from qwengyre.engine.embedded import EmbeddedEngine
from qwengyre.errors import EngineError
from qwengyre.types import KVBlock

WINDOW = 512
PROMPT = np.random.default_rng(3).integers(3, 263, 120).astype(np.int32)
OTHER = np.random.default_rng(4).integers(3, 263, 90).astype(np.int32)
Make = Callable[..., Awaitable[EmbeddedEngine]]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Engines over equal models, open."""
    made: list[EmbeddedEngine] = []

    async def engine(name: str, model: Any = None, **options: Any) -> EmbeddedEngine:
        options = {"eos_ids": [], "window": WINDOW, "version": 3} | options
        made.append(EmbeddedEngine(model or qwen3(), name=name, **options))
        await made[-1].start()
        await made[-1].open()
        return made[-1]

    yield engine
    for each in made:
        await each.stop()


def ask(name: str, prompt: Any = PROMPT, max_tokens: int = 60, handle: str = "0-0") -> Call:
    return Call(name, np.asarray(prompt, np.int32), max_tokens, 0.0, handle=handle)


async def until(engine: EmbeddedEngine, **wanted: float) -> None:
    while True:
        stats = await engine.stats()
        if all(stats[name] >= value for name, value in wanted.items()):
            return
        await asyncio.sleep(0.001)


async def cut(engine: EmbeddedEngine, tokens: int = 10, **asked: Any) -> tuple[np.ndarray, tuple[KVBlock, ...]]:
    """Start a call, export it in mid-output: its partial output and the blocks."""
    call = ask("cut", max_tokens=300, **asked)
    running = asyncio.create_task(engine.generate(call))
    await until(engine, decode_tokens=tokens)
    blocks = await engine.export_kv([call.handle])
    part = await running
    assert part.finish_reason == "abort"
    return part.token_ids, blocks


async def test_it_is_an_engine_that_hands_over(make: Make) -> None:
    assert isinstance(await make("a"), HandsOver)


@pytest.mark.parametrize("family", [llama, qwen3])
async def test_a_moved_call_goes_on_as_if_it_had_stayed(make: Make, family: Callable[[], Any]) -> None:
    model = family()
    source, destination = await make("a", family()), await make("b", family())
    part, [block] = await cut(source)
    assert block.ids.tolist() == [*PROMPT, *part[:-1]], "prompt and partial output, short of the last token"
    assert await destination.import_kv([block], ["0-0"]) == block.tokens
    await source.free_kv([block.id], moved=True)
    rest = await destination.generate(ask("rest", [*PROMPT, *part], 60))
    whole = await (await make("c", family())).generate(ask("whole", max_tokens=len(part) + 60))
    assert [*part, *rest.token_ids] == whole.token_ids.tolist()
    expected = full_logprobs(model, [*PROMPT, *part], rest.token_ids)
    assert np.abs(expected.numpy() - rest.logprobs).max() < 1e-3
    there, here = await destination.stats(), await source.stats()
    assert (there["prefill_tokens"], there["reused_tokens"]) == (1, block.tokens), "the last token only"
    assert (there["moved_tokens_in"], here["moved_tokens_out"]) == (block.tokens, block.tokens)
    assert (here["aborted"], here["aborted_tokens"]) == (1, len(part))


async def test_pinned_until_freed_and_then_the_memory_is_back(make: Make) -> None:
    source = await make("a")
    part, [block] = await cut(source)
    size = len(PROMPT) + len(part) - 1
    stats = await source.stats()
    assert (stats["pinned_tokens"], stats["kv_tokens"]) == (size, size)
    await source.generate(ask("fresh", max_tokens=1, handle="0-1"))
    assert (await source.stats())["reused_tokens"] == 0, "exported keys and values are nobody's prefix any more"
    await source.export_kv(["0-1"])
    data = block.data.clone()
    await source.free_kv([block.id, "b/0", "a/77"], moved=False)
    await source.free_kv([block.id], moved=True)
    stats = await source.stats()
    assert (stats["moved_tokens_out"], stats["pinned_tokens"]) == (0, len(PROMPT)), "the other one's, still pinned"
    assert torch.equal(block.data, data), "whoever holds the block may still read it"
    await source.close()
    await source.sleep()
    assert (await source.stats())["kv_tokens"] == 0, "a sleeping engine holds nothing"


async def test_only_what_these_executions_left_moves_all_their_sequences_do(make: Make) -> None:
    source, destination = await make("a"), await make("b")
    await source.generate(ask("main", PROMPT, 5, "0-0"))
    await source.generate(ask("agent", OTHER, 5, "0-0"))
    await source.generate(ask("foreign", OTHER[::-1], 5, "0-1"))
    blocks = await source.export_kv(["0-0", "0-7"])
    assert sorted(block.tokens for block in blocks) == [len(OTHER) + 4, len(PROMPT) + 4]
    assert {block.handles for block in blocks} == {frozenset({"0-0"})}
    await destination.import_kv(blocks, ["0-0"])
    again = await source.generate(ask("again", OTHER[::-1], 1, "0-1"))
    assert (await source.stats())["reused_tokens"] == len(OTHER) - 1, "the other execution keeps its own"
    assert len(again.token_ids) == 1
    for prompt in (PROMPT, OTHER):
        await destination.generate(ask("next", prompt, 1))
    assert (await destination.stats())["prefill_tokens"] == 2


async def test_a_prefix_that_two_executions_share_moves_with_each(make: Make) -> None:
    source = await make("a")
    await source.generate(ask("x", PROMPT, 5, "0-0"))
    await source.generate(ask("y", PROMPT, 5, "0-1"))
    [block] = await source.export_kv(["0-0", "0-1"])
    assert block.handles == {"0-0", "0-1"}


async def test_a_call_that_ended_by_itself_leaves_its_sequence_to_move(make: Make) -> None:
    source = await make("a")
    done = await source.generate(ask("done", max_tokens=7))
    [block] = await source.export_kv(["0-0"])
    assert done.finish_reason == "length"
    assert block.tokens == len(PROMPT) + 6
    assert (await source.stats())["aborted"] == 0


def test_queued_and_prefilling_calls_end_with_what_they_have(one_model: Any, stepped: Any, rng: Any) -> None:
    run = stepped(one_model, window=WINDOW, max_batch=1)
    long = rng.integers(3, 263, 400)
    run.submit("prefills", long, 20, handle="0-0")
    run.submit("queued", OTHER, 20, handle="0-1")
    run.batch.step()
    [resting] = run.batch.export(frozenset({"0-0", "0-1"})).values()
    assert 0 < len(resting.ids) < len(long), "a part of the prompt is worth moving too"
    assert [(run.done[n].finish_reason, len(run.done[n].token_ids)) for n in run.done] == [("abort", 0)] * 2
    assert not len(run.batch)


@pytest.mark.parametrize(
    ("field", "value"),
    [("version", 4), ("version", 2), ("model", "another"), ("dtype", "torch.bfloat16"), ("shape", (3, 2, 8))],
)
async def test_what_was_made_otherwise_is_refused(make: Make, field: str, value: Any) -> None:
    source, destination = await make("a"), await make("b")
    _, [block] = await cut(source)
    wrong = dataclasses.replace(block, stamp=dataclasses.replace(block.stamp, **{field: value}))
    await destination.expect_kv(["0-0"], 60)
    waiting = asyncio.create_task(destination.generate(ask("waits", max_tokens=1)))
    with pytest.raises(EngineError, match=field):
        await destination.import_kv([block, wrong], ["0-0"])
    await waiting
    stats = await destination.stats()
    assert (stats["moved_tokens_in"], stats["reused_tokens"]) == (0, 0), "none is kept, and nobody waits any longer"


async def test_data_that_does_not_fit_its_ids_is_refused(make: Make) -> None:
    source, destination = await make("a"), await make("b")
    _, [block] = await cut(source)
    for wrong in (
        dataclasses.replace(block, data=block.data[:, :, 1:]),
        dataclasses.replace(block, data=block.data.half()),
        dataclasses.replace(block, ids=block.ids.astype(np.int64)),
    ):
        with pytest.raises(EngineError, match="prefill again"):
            await destination.import_kv([wrong], ["0-0"])
    assert (await destination.stats())["kv_tokens"] == 0


async def test_another_model_is_refused(make: Make) -> None:
    source, destination = await make("a", qwen3()), await make("b", llama())
    _, blocks = await cut(source)
    with pytest.raises(EngineError, match="model"):
        await destination.import_kv(blocks, ["0-0"])


async def test_a_publish_between_export_and_import_refuses_it(make: Make) -> None:
    source, destination = await make("a"), await make("b")
    part, blocks = await cut(source)
    await destination.load(4)
    with pytest.raises(EngineError, match="version 3, engine b has 4"):
        await destination.import_kv(blocks, ["0-0"])
    rest = await destination.generate(ask("rest", [*PROMPT, *part], 5))
    assert rest.spans == (Span(4, 0, 5),)
    assert (await destination.stats())["prefill_tokens"] == len(PROMPT) + len(part)


async def test_calls_wait_for_their_keys_and_values_and_only_they(make: Make) -> None:
    source, destination = await make("a"), await make("b")
    part, blocks = await cut(source)
    await destination.expect_kv(["0-0"], 60)
    waiting = asyncio.create_task(destination.generate(ask("rest", [*PROMPT, *part], 5)))
    await destination.generate(ask("other", OTHER, 5, "0-1"))
    assert not waiting.done()
    await destination.import_kv(blocks, ["0-0"])
    assert len((await waiting).token_ids) == 5
    assert (await destination.stats())["prefill_tokens"] == len(OTHER) + 1


@pytest.mark.parametrize("ended_by", ["limit", "withdrawn", "abort"])
async def test_nobody_waits_for_ever(make: Make, ended_by: str) -> None:
    engine = await make("b")
    await engine.expect_kv(["0-0"], 0.05 if ended_by == "limit" else 60)
    waiting = asyncio.create_task(engine.generate(ask("waits", max_tokens=3)))
    if ended_by == "withdrawn":
        await engine.expect_kv(["0-0"], 0)
    elif ended_by == "abort":
        await until(engine, calls=1)
        assert await engine.abort() == 1
    assert (await waiting).finish_reason == ("abort" if ended_by == "abort" else "length")


async def test_a_waiting_call_keeps_no_core_busy(make: Make) -> None:
    engine = await make("b")
    batch = engine._batch
    assert batch is not None
    await engine.expect_kv(["0-0"], 60)
    waiting = asyncio.create_task(engine.generate(ask("waits", max_tokens=3)))
    await until(engine, calls=1)
    passes = 0
    step = batch.step

    def counted() -> None:
        nonlocal passes
        passes += 1
        step()

    batch.step = counted  # type: ignore[method-assign]
    await asyncio.sleep(0.1)  # nothing to await: nothing must happen
    assert passes <= 1
    await engine.import_kv([], ["0-0"])
    await waiting


async def test_without_room_it_stays_out(make: Make) -> None:
    source = await make("a")
    _, [block] = await cut(source)
    small = await make("b", kv_tokens=WINDOW)
    busy = asyncio.create_task(small.generate(ask("busy", OTHER, 400, "0-1")))
    await until(small, decode_tokens=300)
    assert await small.import_kv([block], ["0-0"]) == 0
    assert (await small.stats())["moved_tokens_in"] == 0
    await busy


async def publish_under(make: Make, kv_on_publish: str) -> tuple[Any, Any, dict[str, float]]:
    """A call during which the weights change: (new model, completion, stats)."""
    model = qwen3()
    engine = await make("a", model, kv_on_publish=kv_on_publish)
    running = asyncio.create_task(engine.generate(ask("a", max_tokens=200)))
    await until(engine, decode_tokens=20)

    def change() -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.1)

    await engine.load(4, change)
    return model, await running, await engine.stats()


async def test_drop_on_publish_is_exact(make: Make) -> None:
    model, done, stats = await publish_under(make, "drop")
    first, second = done.spans
    assert (first.version, second.version, second.kv_version) == (3, 4, -1)
    assert stats["prefill_tokens"] == 2 * len(PROMPT) + first.end, "prompt and partial output again"
    seen = [*PROMPT, *done.token_ids[: first.end]]
    exact = full_logprobs(model, seen, done.token_ids[first.end :])
    assert np.abs(exact.numpy() - done.logprobs[first.end :]).max() < 1e-3


async def test_keep_on_publish_computes_nothing_again_and_says_so(make: Make) -> None:
    model, done, stats = await publish_under(make, "keep")
    first, second = done.spans
    assert (first.version, first.kv_version) == (3, -1)
    assert (second.version, second.kv_version) == (4, 3), "stamped: conditioned on version 3's keys and values"
    assert stats["prefill_tokens"] == len(PROMPT)
    seen = [*PROMPT, *done.token_ids[: first.end]]
    exact = full_logprobs(model, seen, done.token_ids[first.end :])
    assert np.abs(exact.numpy() - done.logprobs[first.end :]).max() > 1e-3, "that is why it is not the default"


async def test_kept_keys_and_values_are_refused_elsewhere_under_their_own_version(make: Make) -> None:
    source, destination = await make("a", kv_on_publish="keep"), await make("b", version=4)
    await source.generate(ask("old", max_tokens=5))
    await source.load(4)
    next_turn = await source.generate(ask("new", max_tokens=5))
    assert next_turn.spans == (Span(4, 0, 5, 3),)
    blocks = await source.export_kv(["0-0"])
    with pytest.raises(EngineError, match="version 3, engine b has 4"):
        await destination.import_kv(blocks, ["0-0"])


async def test_kv_on_publish_is_one_of_two() -> None:
    with pytest.raises(ValueError, match="'drop' or 'keep'"):
        EmbeddedEngine(qwen3(), name="a", eos_ids=[], window=WINDOW, kv_on_publish="maybe")  # type: ignore[arg-type]
