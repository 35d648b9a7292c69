"""The gradient is the formula, whatever the order, the packing and the branching."""

import copy
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from trainer_cases import RECORDED, distance, gradient_of, joined, sequence

from qwengyre.trainer.torch import TorchTrainer
from qwengyre.trajectory.pack import Recipe, split, weigh
from qwengyre.trajectory.tree import ROOT, Tree
from qwengyre.types import Kind, MicroStep, ModelCall, Segment, Settlement, Stretch, Verdict

RECIPE = Recipe(seed=0, jmax=5, microstep_tokens=64, max_sequence=512)
TEMPERATURE = 0.8


def call(number: int, parent: int, prompt: list[int], output: list[int], recorded: list[float]) -> ModelCall:
    return ModelCall(
        call=number,
        thread="t",
        parent=parent,
        suffix=np.array(prompt, np.int32),
        segments=(Segment(Kind.CONTEXT, len(prompt)),),
        output=np.array(output, np.int32),
        logprobs=np.array(recorded, np.float32),
        stretches=(Stretch(0, len(output), 0, "cell0.1", "stop"),),
        finish="stop",
        temperature=TEMPERATURE,
    )


def settled(*scores: float) -> dict[int, Settlement]:
    return {member: Settlement(Verdict.SCORED, score=score) for member, score in enumerate(scores)}


def by_hand(model, terms: list[tuple[float, list[int], int, float]]) -> torch.Tensor:
    """Gradient in float64, one forward pass a target: terms are (weight, context ids, target id, recorded)."""
    exact = copy.deepcopy(model).double()
    total = torch.zeros((), dtype=torch.float64)
    for weight, context, target, recorded in terms:
        logits = exact(input_ids=torch.tensor([context])).logits[0, -1]
        logp = torch.log_softmax(logits / TEMPERATURE, 0)[target]
        ratio = min(math.exp(float(logp.detach()) - recorded), 5.0)
        total = total - weight * ratio * logp
    total.backward()
    return torch.cat([p.grad.flatten() for _, p in sorted(exact.named_parameters())])


def test_a_hand_made_group_gives_the_hand_computed_gradient(model):
    # Member 0: two calls in a line. Member 1: one context, two answers. Member 2: A = 0. Member 3: dropped.
    system, hello, again = [257, 10, 11, 258], [84, 85], [90]
    trees = {member: Tree() for member in range(4)}
    row = trees[0].add_call(call(0, ROOT, system + hello, [40, 41, 258], [-5.2, -5.8, -5.0]))[-1]
    trees[0].add_call(call(1, row, again, [42, 258], [-5.5, -9.0]))  # the second ratio is above 5
    root = trees[1].add_call(call(0, ROOT, system, [50, 51], [-5.9, -5.4]))[-1]
    trees[1].add_call(call(1, root, hello, [52, 53, 54], [-5.1, -5.6, -5.7]))
    trees[1].add_call(call(2, root, again, [55], [-5.3]))
    trees[2].add_call(call(0, ROOT, system, [60, 61], [-5.0, -5.0]))
    trees[3].add_call(call(0, ROOT, system, [70, 71], [-5.0, -5.0]))
    members = settled(0, 1, 0.5) | {3: Settlement(Verdict.DROPPED, reason="the verifier crashed on each retry")}

    low, high = -0.5 / 5, 0.5 / 6  # A_e / T_e: scores 0, 1, 0.5 have the mean 0.5
    line = system + hello + [40, 41, 258] + again + [42, 258]
    left, right = [*system, 50, 51, *hello, 52, 53, 54], [*system, 50, 51, *again, 55]
    expected = by_hand(
        model,
        [(low, line[:t], line[t], r) for t, r in ((6, -5.2), (7, -5.8), (8, -5.0), (10, -5.5), (11, -9.0))]
        + [(high, left[:t], left[t], r) for t, r in ((4, -5.9), (5, -5.4), (8, -5.1), (9, -5.6), (10, -5.7))]
        + [(high, right[:7], right[7], -5.3)],
    )
    trainer = TorchTrainer(model)
    micro_steps = weigh(0, trees, members, RECIPE)
    assert distance(gradient_of(trainer, micro_steps), expected) < 1e-5
    sums = [trainer.accumulate(m) for m in micro_steps]
    assert sum(s["targets"] for s in sums) == 11
    assert sum(s["clipped"] for s in sums) == 1


def parts(rng: np.random.Generator, num: int = 9) -> list[MicroStep]:
    shapes = zip(rng.integers(20, 120, num), rng.integers(3, 18, num), rng.normal(0, 0.05, num), strict=True)
    return [sequence(rng, int(length), int(targets), float(weight)) for length, targets, weight in shapes]


def test_the_order_of_micro_steps_does_not_matter(model, rng):
    trainer, micro_steps = TorchTrainer(model), parts(rng)
    reference = gradient_of(trainer, micro_steps)
    for _ in range(4):
        shuffled = [micro_steps[i] for i in rng.permutation(len(micro_steps))]
        assert distance(gradient_of(trainer, shuffled), reference) < 1e-6


def test_the_split_over_cells_does_not_matter(model, rng):
    micro_steps = parts(rng)
    core, satellite = TorchTrainer(model), TorchTrainer(copy.deepcopy(model), optimizer=False)
    reference = gradient_of(core, micro_steps)
    shared = gradient_of(core, micro_steps[:4]) + gradient_of(satellite, micro_steps[4:])
    assert distance(shared, reference) < 1e-6


def test_the_packing_does_not_matter(model, rng):
    trainer, singles = TorchTrainer(model), parts(rng)
    reference = gradient_of(trainer, singles)
    for cuts in ([9], [1, 8], [3, 3, 3], [2, 5, 2]):
        edges = np.cumsum([0, *cuts])
        packed = [joined(f"p{a}", singles[a:b]) for a, b in pairwise(edges)]
        assert distance(gradient_of(trainer, packed), reference) < 1e-5


def test_the_cut_of_a_micro_step_does_not_matter(model, rng):
    whole = joined("g0.0", parts(rng))
    trainer = TorchTrainer(model)
    expected = gradient_of(trainer, [whole])
    for tokens in (1, whole.tokens // 3, whole.tokens // 2):
        head, rest = split(whole, tokens)
        assert rest is not None
        assert distance(gradient_of(trainer, [rest, head]), expected) < 1e-6


def test_a_row_is_untouched_by_its_neighbours_and_by_padding(model, rng):
    trainer = TorchTrainer(model)
    long, short = sequence(rng, 64, 8, 0.1), sequence(rng, 57, 8, 0.1)
    silent = MicroStep("s", 0, long.ids, long.lengths, 0 * long.weights, long.logprobs, long.temperature)
    assert distance(gradient_of(trainer, [joined("two", [silent, short])]), gradient_of(trainer, [short])) < 1e-5


def test_a_shared_row_has_the_gradient_of_its_tokens_once(model):
    """One answer continued in three ways: the shared answer is trained once, with the same weight as any other."""
    shared, tails = [30, 31, 32], [[33, 34], [35], [36, 37, 38]]
    tree = Tree()
    root = tree.add_call(call(0, ROOT, [257, 10], shared, [RECORDED] * 3))[-1]
    for number, tail in enumerate(tails, 1):
        tree.add_call(call(number, root, [20 + number], tail, [RECORDED] * len(tail)))
    weight = 0.5 / 9
    terms = [(weight, [257, 10, *shared[:t]], shared[t], RECORDED) for t in range(3)]
    for number, tail in enumerate(tails, 1):
        terms += [(weight, [257, 10, *shared, 20 + number, *tail[:t]], tail[t], RECORDED) for t in range(len(tail))]
    micro_steps = weigh(0, {0: tree}, settled(1, 0), RECIPE)  # member 1 made no call: in the mean, without rows
    assert distance(gradient_of(TorchTrainer(model), micro_steps), by_hand(model, terms)) < 1e-5


@pytest.mark.parametrize("num", [1, 2, 5])
def test_splitting_an_execution_into_branches_leaves_its_loss_weight_unchanged(model, num):
    tokens = 20
    tree = Tree()
    root = tree.add(ROOT, Kind.CONTEXT, np.array([257, 10, 11], np.int32), call=0, thread="t")
    size = tokens // num
    for number in range(num):
        output = list(range(40 + number * size, 40 + (number + 1) * size))
        tree.add_call(call(number, root, [90], output, [RECORDED] * size))
    seen = []
    for micro_step in weigh(0, {0: tree}, settled(1, 0), RECIPE):
        seen += micro_step.weights[micro_step.weights != 0].tolist()
    assert len(seen) == tokens
    assert seen == pytest.approx([0.5 / tokens] * tokens)
