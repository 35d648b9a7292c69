"""What a move costs with and without hand-over of keys and values: prompt tokens computed again, and the time it takes.

    python bench/handover.py [--context 512 2048 4096] [--calls 8] [--partial 32] [--repeats 3] [--json]

`--calls` live calls of the tiny model, each after a context of its own, are cut at one engine when they have about
`--partial` tokens of output, and go on at another one until each has one token more. One process, one torch thread an
engine; the blocks are copied once, as they are between processes. `prefill` counts prompt and partial tokens that the
second engine computes. `wall` and `cpu` are milliseconds from the cut to the last call's next token (the best of
`--repeats`); a ratio above 1 says how much longer recomputing takes. Read the ratios, not the times. At 4096 tokens of
context the positions go beyond those that the model was made for, which changes no speed.
"""

import argparse
import asyncio
import json
import time
from typing import Any

import numpy as np
import torch

from qwengyre.engine.calls import Call
from qwengyre.engine.embedded import EmbeddedEngine
from qwengyre.model import load
from qwengyre.transfer.kv import TensorKV
from qwengyre.transfer.weights import LocalWeights


async def move(model: Any, context: int, calls: int, partial: int, kv: bool) -> dict[str, float]:
    """One move: counts of the second engine, and seconds."""
    window = context + partial + 1024
    options = {"eos_ids": [], "window": window, "kv_tokens": (calls + 1) * 2 * window}
    engines = [EmbeddedEngine(model, name=name, **options) for name in ("source", "destination")]
    source, destination = engines
    for engine in engines:
        await engine.start()
        await engine.open()
    rng = np.random.default_rng(context)
    prompts = [rng.integers(3, model.config.vocab_size, context).astype(np.int32) for _ in range(calls)]
    names = [f"0-{i}" for i in range(calls)]
    running = [
        asyncio.create_task(source.generate(Call(n, p, 1000, handle=n))) for n, p in zip(names, prompts, strict=True)
    ]
    while (await source.stats())["decode_tokens"] < calls * partial:  # noqa: ASYNC110 - there is no event to await
        await asyncio.sleep(0.001)
    await source.close()
    wall, cpu = time.perf_counter(), time.process_time()
    if kv:
        transfer = TensorKV(LocalWeights("bench"))
        blocks = await source.export_kv(names)
        parts = await asyncio.gather(*running)
        ticket = transfer.expose(blocks)
        moved = await destination.import_kv(transfer.pull(ticket), names)
        transfer.free(ticket)
        await source.free_kv([block.id for block in blocks], moved=True)
        assert moved == sum(block.tokens for block in blocks)
    else:
        await source.abort()
        parts = await asyncio.gather(*running)
    seen = [np.concatenate([p, part.token_ids]) for p, part in zip(prompts, parts, strict=True)]
    await asyncio.gather(*(destination.generate(Call(n, ids, 1, handle=n)) for n, ids in zip(names, seen, strict=True)))
    spent = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    stats = await destination.stats()
    assert stats["prefill_tokens"] + stats["reused_tokens"] == sum(map(len, seen))
    for engine in engines:
        await engine.stop()
    return spent | {"prefill": stats["prefill_tokens"], "tokens": float(sum(map(len, seen)))}


def measure(model: Any, context: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """The best of a few moves each way, taken in turns."""
    taken: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    for _ in range(arguments.repeats):
        for kv in (True, False):
            taken[kv].append(asyncio.run(move(model, context, arguments.calls, arguments.partial, kv)))
    best = {kv: {key: min(row[key] for row in rows) for key in rows[0]} for kv, rows in taken.items()}
    return {
        "context": context,
        "calls": arguments.calls,
        "prefill_kv": int(best[True]["prefill"]),
        "prefill_recompute": int(best[False]["prefill"]),
        "wall_kv_ms": best[True]["wall"] * 1e3,
        "wall_recompute_ms": best[False]["wall"] * 1e3,
        "wall_ratio": best[False]["wall"] / best[True]["wall"],
        "cpu_kv_ms": best[True]["cpu"] * 1e3,
        "cpu_recompute_ms": best[False]["cpu"] * 1e3,
        "cpu_ratio": best[False]["cpu"] / best[True]["cpu"],
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--context", type=int, nargs="+", default=[512, 2048, 4096])
    parser.add_argument("--calls", type=int, default=8)
    parser.add_argument("--partial", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = load.causal_lm(load.resolve("tiny"))
    asyncio.run(move(model, 64, 2, 4, True))
    rows: list[dict[str, Any]] = []
    for context in arguments.context:
        rows.append(measure(model, context, arguments))
        if not arguments.json:
            _print_row(rows[-1], header=len(rows) == 1)
    if arguments.json:
        print(json.dumps(rows))


def _print_row(row: dict[str, Any], header: bool) -> None:
    if header:
        print("a move of live calls, tiny model: kv = handed over, re = computed again; ratio = re / kv")
        print(
            f"{'context':>8} {'calls':>5} {'prefill kv':>10} {'prefill re':>10} {'wall kv':>9} {'wall re':>9} "
            f"{'ratio':>6} {'cpu kv':>9} {'cpu re':>9} {'ratio':>6}",
            flush=True,
        )
    print(
        f"{row['context']:>8} {row['calls']:>5} {row['prefill_kv']:>10} {row['prefill_recompute']:>10} "
        f"{row['wall_kv_ms']:>6.0f} ms {row['wall_recompute_ms']:>6.0f} ms {row['wall_ratio']:>6.1f} "
        f"{row['cpu_kv_ms']:>6.0f} ms {row['cpu_recompute_ms']:>6.0f} ms {row['cpu_ratio']:>6.1f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
