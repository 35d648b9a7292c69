"""Leaves are drawn with the probabilities of the rule, and no others: on random trees, over whole orders of draws."""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from qwengyre.trajectory.roles import PRIORITY, LeafRole
from qwengyre.trajectory.select import select, trainable
from qwengyre.trajectory.tree import ROOT, Tree
from qwengyre.types import Kind

DRAWS = 3000
JMAX = 3
Order = tuple[int, ...]
Chance = Callable[[Sequence[float]], Sequence[float]]


def grown(seed: int) -> tuple[Tree, dict[int, LeafRole]]:
    """A random tree of about 6 leaves with very unequal branches, in two classes."""
    rng = np.random.default_rng(seed)
    tree, sampled = Tree(), [ROOT]
    for call in range(12):
        parent = int(rng.choice(sampled[-4:]))
        context = tree.add(parent, Kind.CONTEXT, np.zeros(2, np.int32), call=call, thread="t")
        size = int(rng.choice([1, 4, 16, 40]))
        ids, logprobs = np.zeros(size, np.int32), np.zeros(size, np.float32)
        sampled.append(tree.add(context, Kind.SAMPLED, ids, call=call, thread="t", logprobs=logprobs))
        if rng.random() < 0.15:
            tree.withheld.add(sampled[-1])
    return tree, {leaf: LeafRole(str(rng.choice(PRIORITY[:2])), "") for leaf in tree.leaves()}


def orders(tree: Tree, roles: dict[int, LeafRole], chance: Chance) -> dict[Order, float]:
    """Every order of draws and its probability, told by hand; `chance` makes probabilities of tokens left."""
    found: dict[Order, float] = {}

    def go(order: Order, left: list[int], p: float) -> None:
        on_path = {leaf: sum(left[row] for row in tree.path(leaf)) for leaf in roles}
        for role in PRIORITY:
            leaves = [leaf for leaf in roles if roles[leaf].role == role and on_path[leaf]]
            if leaves and len(order) < JMAX:
                for leaf, q in zip(leaves, chance([on_path[leaf] for leaf in leaves]), strict=True):
                    masked = [0 if row in tree.path(leaf) else tokens for row, tokens in enumerate(left)]
                    go((*order, leaf), masked, p * q)
                return
        found[order] = found.get(order, 0.0) + p

    go((), trainable(tree), 1.0)
    return found


def distance(drawn: Counter[Order], expected: dict[Order, float]) -> float:
    """Chi-squared over its degrees of freedom; orders expected less than 5 times are one."""
    common = {order for order, p in expected.items() if p * DRAWS >= 5}
    pairs = [(drawn[order], expected[order] * DRAWS) for order in common]
    pairs.append((DRAWS - sum(n for n, _ in pairs), DRAWS - sum(m for _, m in pairs)))
    return sum((n - m) ** 2 / max(m, 1.0) for n, m in pairs) / max(len(pairs) - 1, 1)


def proportional(tokens: Sequence[float]) -> Sequence[float]:
    return [t / sum(tokens) for t in tokens]


def uniform(tokens: Sequence[float]) -> Sequence[float]:
    return [1 / len(tokens)] * len(tokens)


def longest(tokens: Sequence[float]) -> Sequence[float]:
    return [float(t == max(tokens)) / sum(u == max(tokens) for u in tokens) for t in tokens]


@pytest.mark.parametrize("seed", range(8))
def test_frequencies_match_the_rule_on_random_trees(seed: int) -> None:
    tree, roles = grown(seed)
    drawn = Counter(
        tuple(pick.leaf for pick in select(tree, roles, np.random.default_rng([seed, n]), JMAX)) for n in range(DRAWS)
    )
    expected = orders(tree, roles, proportional)
    assert sum(expected.values()) == pytest.approx(1)
    assert set(drawn) <= set(expected)
    assert distance(drawn, expected) < 2.5


def test_they_match_no_other_rule() -> None:
    """The same test fails under uniform draws, and under the longest leaf first."""
    far = {uniform: 0, longest: 0}
    for seed in range(8):
        tree, roles = grown(seed)
        drawn = Counter(
            tuple(pick.leaf for pick in select(tree, roles, np.random.default_rng([seed, n]), JMAX))
            for n in range(DRAWS)
        )
        for rule in far:
            far[rule] += distance(drawn, orders(tree, roles, rule)) > 2.5
    assert min(far.values()) >= 6, "trees with one leaf of a class tell no rule from another"
