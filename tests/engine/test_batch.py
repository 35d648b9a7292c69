"""Continuous batching against the module's own full forward and `generate`."""

import numpy as np
import pytest
import torch

from qwengyre.engine.calls import Span
from qwengyre.engine.forward import chunk_tokens


def prompts(rng, lengths):
    return [rng.integers(0, 263, n).astype(np.int32) for n in lengths]


def test_logprobs_equal_a_full_forward(model, stepped, reference, rng):
    run = stepped(model)
    asked = {}
    for i, prompt in enumerate(prompts(rng, (1, 2, 30, 63, 64, 65, 100, 17))):
        temperature = (1.0, 0.7, 1.5)[i % 3]
        asked[str(i)] = (prompt, temperature)
        run.submit(str(i), prompt, 40, temperature, seed=i)
        run.batch.step()
    run.run()
    for name, (prompt, temperature) in asked.items():
        got = run.done[name]
        assert len(got.token_ids) == 40
        want = reference(model, prompt, got.token_ids, temperature).numpy()
        np.testing.assert_allclose(got.logprobs, want, atol=1e-4)


def test_greedy_with_staggered_arrivals_equals_generate(model, stepped, greedy_reference, rng):
    run = stepped(model)
    asked = {str(i): (p, 5 + 7 * i) for i, p in enumerate(prompts(rng, (40, 3, 90, 8, 33)))}
    for name, (prompt, max_tokens) in asked.items():
        run.submit(name, prompt, max_tokens)
        for _ in range(3):
            run.batch.step()
    run.run()
    for name, (prompt, max_tokens) in asked.items():
        assert run.done[name].token_ids.tolist() == greedy_reference(model, prompt, max_tokens)
        assert run.done[name].finish_reason == "length"


def test_greedy_logprobs_are_those_of_temperature_one(one_model, stepped, reference, rng):
    run = stepped(one_model)
    [prompt] = prompts(rng, (20,))
    run.submit("a", prompt, 10)
    run.run()
    np.testing.assert_allclose(
        run.done["a"].logprobs, reference(one_model, prompt, run.done["a"].token_ids).numpy(), atol=1e-4
    )


def test_equal_prompts_are_computed_once(one_model, stepped, rng):
    run = stepped(one_model)
    [prompt] = prompts(rng, (50,))
    for i in range(8):
        run.submit(str(i), prompt, 10, 1.0, seed=i)
    run.run()
    # The last prompt token of each sharer is computed again: its logits are needed.
    assert run.count("prefill_tokens") == 50 + 7
    assert run.count("reused_tokens") == 7 * 49
    assert run.count("decode_tokens") == 80
    assert len({tuple(run.done[str(i)].token_ids) for i in range(8)}) > 1


def test_a_common_prefix_of_different_prompts_is_computed_once(one_model, stepped, reference, rng):
    run = stepped(one_model)
    common, *tails = prompts(rng, (60, 9, 5, 1))
    tails = [np.concatenate(([i], tail)) for i, tail in enumerate(tails)]
    for i, tail in enumerate(tails):
        run.submit(str(i), np.concatenate((common, tail)), 6, 1.0, seed=i)
    run.run()
    assert run.count("prefill_tokens") == 60 + sum(map(len, tails))
    assert run.count("reused_tokens") == 2 * 60
    for i, tail in enumerate(tails):
        got = run.done[str(i)]
        want = reference(one_model, np.concatenate((common, tail)), got.token_ids).numpy()
        np.testing.assert_allclose(got.logprobs, want, atol=1e-4)


def test_the_next_call_of_an_execution_continues_from_the_last(model, stepped, reference, rng):
    run = stepped(model)
    prompt, reply = prompts(rng, (40, 15))
    run.submit("first", prompt, 12, 1.0, seed=3)
    run.run()
    history = np.concatenate((prompt, run.done["first"].token_ids, reply))
    run.submit("next", history, 12, 1.0, seed=4)
    run.run()
    # The last sampled token of the first call was never an input, so it has no keys and values yet.
    assert run.count("reused_tokens") == 40 + 11
    assert run.count("prefill_tokens") == 40 + 1 + 15
    got = run.done["next"]
    np.testing.assert_allclose(got.logprobs, reference(model, history, got.token_ids).numpy(), atol=1e-4)


def test_a_repeated_prompt_after_its_call_ended(one_model, stepped, rng):
    run = stepped(one_model)
    [prompt] = prompts(rng, (30,))
    for name in "ab":
        run.submit(name, prompt, 8)
        run.run()
    assert run.done["a"].token_ids.tolist() == run.done["b"].token_ids.tolist()
    assert (run.count("prefill_tokens"), run.count("reused_tokens")) == (31, 29)


def test_seed_fixes_the_ids_whatever_else_runs(one_model, stepped, rng):
    target, *others = prompts(rng, (25, 60, 3, 40))
    alone, crowded = stepped(one_model), stepped(one_model)
    alone.submit("t", target, 30, 1.0, seed=11)
    alone.run()
    for i, other in enumerate(others):
        crowded.submit(str(i), other, 50, 1.0, seed=i)
    crowded.batch.step()
    crowded.submit("t", target, 30, 1.0, seed=11)
    crowded.run()
    assert alone.done["t"].token_ids.tolist() == crowded.done["t"].token_ids.tolist()
    other = stepped(one_model)
    other.submit("t", target, 30, 1.0, seed=12)
    other.run()
    assert other.done["t"].token_ids.tolist() != alone.done["t"].token_ids.tolist()


def test_stop_ids_end_a_call_and_are_part_of_its_output(one_model, stepped, rng):
    [prompt] = prompts(rng, (20,))
    free, stopped = stepped(one_model), stepped(one_model)
    free.submit("a", prompt, 20, 1.0, seed=5)
    free.run()
    ids = free.done["a"].token_ids.tolist()
    stop = ids[7]
    stopped.submit("a", prompt, 20, 1.0, seed=5, stops=(stop,))
    stopped.run()
    got = stopped.done["a"]
    assert got.token_ids.tolist() == ids[: ids.index(stop) + 1]
    assert (got.finish_reason, got.stop_reason) == ("stop", stop)
    assert len(got.logprobs) == len(got.token_ids)


@pytest.mark.parametrize("steps", [0, 1, 2, 5], ids=["queued", "prefilling", "still prefilling", "decoding"])
def test_abort_returns_the_partial_output_once(one_model, stepped, rng, chunk, steps):
    run = stepped(one_model, window=1024)
    long, other = prompts(rng, (2 * chunk + 40, 12))
    run.submit("a", long, 100, 1.0)
    for _ in range(steps):
        run.batch.step()
    assert run.batch.abort(["a", "unknown"]) == 1
    got = run.done["a"]
    assert got.finish_reason == "abort"
    assert len(got.token_ids) == len(got.logprobs) == max(0, steps - 2)
    assert run.batch.abort(None) == 0
    assert (run.count("aborted"), len(run.batch)) == (1, 0)
    run.submit("b", other, 3)
    run.run()
    assert len(run.done["b"].token_ids) == 3


def test_an_aborted_call_goes_on_where_it_was(one_model, stepped, greedy_reference, rng):
    run = stepped(one_model)
    [prompt] = prompts(rng, (30,))
    run.submit("a", prompt, 20)
    for _ in range(8):
        run.batch.step()
    run.batch.abort(["a"])
    partial = run.done["a"].token_ids
    before = run.count("prefill_tokens")
    run.submit("b", np.concatenate((prompt, partial)), 20 - len(partial))
    run.run()
    assert [*partial, *run.done["b"].token_ids] == greedy_reference(one_model, prompt, 20)
    assert run.count("prefill_tokens") - before == 1


def test_a_natural_stop_wins_over_an_abort(one_model, stepped, rng):
    run = stepped(one_model)
    run.submit("a", prompts(rng, (10,))[0], 1)
    run.batch.step()
    assert run.batch.abort(None) == 0
    assert run.done["a"].finish_reason == "length"


def test_new_weights_in_mid_call_make_two_spans_and_exact_logprobs(model, stepped, reference, rng):
    import copy

    run = stepped(model)
    old = copy.deepcopy(model)
    [prompt] = prompts(rng, (30,))
    names = "abc"
    for i, name in enumerate(names):
        run.submit(name, prompt, 16, 1.0, seed=i)
    for _ in range(6):
        run.batch.step()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.05)
    run.batch.reload(5)
    assert run.batch.kv_used == 0
    run.run()
    for name in names:
        got = run.done[name]
        (v0, s0, cut, _), (v1, cut2, end, _) = got.spans
        assert (v0, s0, v1, cut, end) == (0, 0, 5, cut2, 16)
        assert 0 < cut < 16
        ids = got.token_ids
        np.testing.assert_allclose(got.logprobs[:cut], reference(old, prompt, ids[:cut]).numpy(), atol=1e-4)
        np.testing.assert_allclose(got.logprobs[cut:], reference(model, prompt, ids).numpy()[cut:], atol=1e-4)


def test_no_prefix_survives_new_weights(one_model, stepped, rng):
    run = stepped(one_model)
    [prompt] = prompts(rng, (30,))
    run.submit("a", prompt, 4)
    run.run()
    run.batch.reload(1)
    run.submit("b", prompt, 4)
    run.run()
    assert run.count("reused_tokens") == 0
    assert run.done["b"].spans == (Span(1, 0, 4),)


@pytest.mark.parametrize("kv_tokens", [128, 300])
def test_a_small_budget_evicts_and_queues_but_stays_exact(one_model, stepped, greedy_reference, rng, kv_tokens):
    run = stepped(one_model, window=128, kv_tokens=kv_tokens)
    asked = {str(i): (p, 60) for i, p in enumerate(prompts(rng, (30, 64, 50, 10, 66)))}
    for name, (prompt, max_tokens) in asked.items():
        run.submit(name, prompt, max_tokens)
    while len(run.batch):
        run.batch.step()
        assert run.batch.kv_used <= kv_tokens
    for name, (prompt, max_tokens) in asked.items():
        assert run.done[name].token_ids.tolist() == greedy_reference(one_model, prompt, max_tokens)


def test_the_least_recently_used_prefix_is_evicted(one_model, stepped, rng):
    run = stepped(one_model, window=128, kv_tokens=256)
    first, second, third = prompts(rng, (60, 60, 60))
    for name, prompt in (("1", first), ("2", second), ("1 again", first), ("3", third)):
        run.submit(name, prompt, 20)
        run.run()
    before = run.count("reused_tokens")
    run.submit("first is kept", first, 4)
    run.run()
    assert run.count("reused_tokens") == before + 59
    run.submit("second is gone", second, 4)
    run.run()
    assert run.count("reused_tokens") == before + 59


def test_a_long_prompt_does_not_stall_the_others(one_model, stepped, rng):
    run = stepped(one_model, window=2048)
    long, short = prompts(rng, (1500, 10))
    run.submit("long", long, 2)
    run.batch.step()
    run.submit("short", short, 3)
    for _ in range(3):
        run.batch.step()
    assert "short" in run.done
    assert run.count("prefill_tokens") < 1500
    run.run()
    assert len(run.done["long"].token_ids) == 2


def test_a_pass_takes_at_most_a_chunk_of_prompts(one_model, stepped, rng, chunk):
    run = stepped(one_model, window=1024)
    for i, prompt in enumerate(prompts(rng, (300, 300, 300))):
        run.submit(str(i), prompt, 2)
    before = 0
    while len(run.batch):
        run.batch.step()
        assert run.count("prefill_tokens") - before <= chunk
        before = run.count("prefill_tokens")
    assert before == 900


def test_at_most_max_batch_calls_run(one_model, stepped, greedy_reference, rng):
    run = stepped(one_model, max_batch=2)
    asked = dict(enumerate(prompts(rng, (10, 20, 30, 40))))
    for i, prompt in asked.items():
        run.submit(str(i), prompt, 5)
    run.batch.step()
    run.batch.step()
    assert run.count("prefill_tokens") == 10 + 20
    run.run()
    for i, prompt in asked.items():
        assert run.done[str(i)].token_ids.tolist() == greedy_reference(one_model, prompt, 5)


def test_no_memory_is_left_after_many_calls(one_model, stepped, rng):
    run = stepped(one_model, window=128, kv_tokens=512)
    for round_ in range(30):
        for i, prompt in enumerate(prompts(rng, rng.integers(1, 60, 5))):
            run.submit(f"{round_}.{i}", prompt, int(rng.integers(1, 60)), 1.0, seed=i)
        for _ in range(int(rng.integers(0, 30))):
            if len(run.batch):
                run.batch.step()
        if round_ % 3 == 0:
            run.batch.abort(None)
    run.run()
    assert len(run.done) == 150
    assert run.batch._slabs == {}
    assert run.batch.kv_used == run.batch._cache.tokens <= 512
    run.batch.free()
    assert run.batch.kv_used == 0


def test_a_chunk_is_about_the_same_work_for_every_model():
    cpu = torch.device("cpu")
    assert chunk_tokens(135_000_000, cpu) == 256
    assert chunk_tokens(1000, cpu) == chunk_tokens(8 * 10**9, torch.device("cuda")) == 1024
    assert chunk_tokens(8 * 10**9, cpu) == 64
