"""Tokens per CPU-second of the embedded engine beside transformers' `generate` and its continuous batching.

    python bench/engine.py [--model tiny default] [--prompts apart alike] [--batch 1 8 32 64] [--tokens 32]
                           [--repeats 2] [--json]

One torch thread; CPU-seconds are process time, which resists other load; prefill is included; every contender samples
at temperature 1 the same number of tokens after the same prompts of 32 to 96 random ids: all different (`apart`), or
8 calls to each (`alike`: a group of executions of one query). Ours also returns log-probs. The contenders take turns
in one process and the best of `--repeats` turns counts: read the ratios, not the speeds. The models are those that
`model.name` means by `tiny` and by the default.
"""

import argparse
import asyncio
import itertools
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
import transformers
from transformers import ContinuousBatchingConfig, GenerationConfig

from qwengyre.engine.calls import Call
from qwengyre.engine.embedded import EmbeddedEngine
from qwengyre.model import load

Prompts = list[list[int]]
Contender = Callable[[Any, Prompts, int], float]
_WINDOW = 512


MODELS = {"tiny": load.TINY, "default": load.DEFAULT}


def ours(model: Any, prompts: Prompts, tokens: int) -> float:
    """CPU-seconds of the embedded engine; starting it is not counted."""

    async def run() -> float:
        engine = EmbeddedEngine(model, name="bench", eos_ids=[], window=_WINDOW, max_batch=len(prompts))
        await engine.start()
        await engine.open()
        calls = [Call(str(i), np.asarray(ids, np.int32), tokens) for i, ids in enumerate(prompts)]
        started = time.process_time()
        done = await asyncio.gather(*(engine.generate(call) for call in calls))
        spent = time.process_time() - started
        assert sum(len(completion.token_ids) for completion in done) == len(prompts) * tokens
        await engine.stop()
        return spent

    return asyncio.run(run())


def generate(model: Any, prompts: Prompts, tokens: int) -> float:
    """CPU-seconds of `generate` over one left-padded batch."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    options = {"max_new_tokens": tokens, "do_sample": True, "pad_token_id": 0, "top_k": 0, "eos_token_id": None}
    started = time.process_time()
    out = model.generate(ids, attention_mask=mask, **options)
    spent = time.process_time() - started
    assert out.shape[1] == longest + tokens
    return spent


def continuous(model: Any, prompts: Prompts, tokens: int) -> float:
    """CPU-seconds of transformers' continuous batching, its manager warm and kept."""
    generation = GenerationConfig(max_new_tokens=tokens, do_sample=True, top_k=0, eos_token_id=-1, pad_token_id=0)
    shape = ContinuousBatchingConfig(num_blocks=512, max_batch_tokens=512)
    manager = model.init_continuous_batching(generation_config=generation, continuous_batching_config=shape)
    manager.start()
    try:
        _exchange(manager, prompts[:1], 2)
        started = time.process_time()
        made = _exchange(manager, prompts, tokens)
        spent = time.process_time() - started
    finally:
        manager.stop(block=True)
    assert made == len(prompts) * tokens
    return spent


def _exchange(manager: Any, prompts: Prompts, tokens: int) -> int:
    for prompt in prompts:
        manager.add_request(list(prompt), max_new_tokens=tokens)
    made = 0
    for _ in prompts:
        result = None
        while result is None:
            result = manager.get_result(timeout=1)
        made += len(result.generated_tokens)
    return made


CONTENDERS: dict[str, Contender] = {"ours": ours, "generate": generate, "continuous batching": continuous}


def make_prompts(vocabulary: int, batch: int, kind: str) -> Prompts:
    """`batch` prompts of 32 to 96 ids; `alike`: each of them eight times."""
    rng = np.random.default_rng(batch)
    copies = min(8, batch) if kind == "alike" else 1
    made = [rng.integers(3, vocabulary, int(rng.integers(32, 97))).tolist() for _ in range(batch // copies)]
    return [prompt for prompt in made for _ in range(copies)]


def measure(model: Any, prompts: Prompts, tokens: int, repeats: int) -> dict[str, float]:
    """Best tokens per CPU-second of each contender."""
    spent = {name: float("inf") for name in CONTENDERS}
    for _ in range(repeats):
        for name, contender in CONTENDERS.items():
            spent[name] = min(spent[name], contender(model, prompts, tokens))
    return {name: len(prompts) * tokens / seconds for name, seconds in spent.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=list(MODELS), nargs="+", default=list(MODELS))
    parser.add_argument("--prompts", choices=["apart", "alike"], nargs="+", default=["apart", "alike"])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    rows: list[dict[str, Any]] = []
    for name, kind in itertools.product(arguments.model, arguments.prompts):
        model = load.causal_lm(load.resolve(MODELS[name], progress=lambda phase: print(phase, file=sys.stderr)))
        model.generation_config = GenerationConfig()  # its own would stop at the end of a turn
        measure(model, make_prompts(model.config.vocab_size, 1, kind), 2, 1)
        for batch in arguments.batch:
            if batch == 1 and kind == "alike" and "apart" in arguments.prompts:
                continue
            prompts = make_prompts(model.config.vocab_size, batch, kind)
            speeds = measure(model, prompts, arguments.tokens, arguments.repeats)
            best = max(speed for contender, speed in speeds.items() if contender != "ours")
            rows.append({"model": name, "prompts": kind, "batch": batch, **speeds, "ratio": speeds["ours"] / best})
            if not arguments.json:
                _print_row(rows[-1], header=len(rows) == 1)
    if arguments.json:
        print(json.dumps(rows))


def _print_row(row: dict[str, Any], header: bool) -> None:
    if header:
        print("tokens per CPU-second, one torch thread; ratio = ours / the better of the other two")
        print(
            f"{'model':>8} {'prompts':>7} {'batch':>5} {'ours':>9} {'generate':>9} {'cont. b.':>9} {'ratio':>6}",
            flush=True,
        )
    speeds = " ".join(f"{row[name]:9.1f}" for name in CONTENDERS)
    print(f"{row['model']:>8} {row['prompts']:>7} {row['batch']:>5} {speeds} {row['ratio']:6.2f}", flush=True)


if __name__ == "__main__":
    main()
