"""Any tree, any scores: what is trained, how often, and with what weight."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from qwengyre.trajectory.credit import advantages
from qwengyre.trajectory.pack import Recipe, split, weigh
from qwengyre.trajectory.roles import roles
from qwengyre.trajectory.runs import before, flattened
from qwengyre.trajectory.select import rng_for, select, trainable, trajectory
from qwengyre.trajectory.tree import ROOT, Tree
from qwengyre.types import ExecutionId, Kind, MicroStep, ModelCall, Segment, Settlement, Stretch, Verdict

EXECUTION = ExecutionId(0, 0)


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Up to 12 calls, each below any earlier row; ids are unique, so a token names its place."""
    tree, next_id = Tree(), 1
    for number in range(draw(st.integers(0, 12))):
        parent = draw(st.integers(ROOT, len(tree) - 1))
        cuts = draw(st.lists(st.integers(1, 6), min_size=int(parent == ROOT), max_size=3))
        output = draw(st.integers(0, 8))
        suffix = np.arange(next_id, next_id + sum(cuts), dtype=np.int32)
        next_id += sum(cuts) + output
        rows = tree.add_call(
            ModelCall(
                call=number,
                thread="t",
                parent=parent,
                suffix=suffix,
                segments=tuple(Segment(Kind.CONTEXT, cut) for cut in cuts),
                output=np.arange(next_id - output, next_id, dtype=np.int32),
                logprobs=np.full(output, -1, np.float32),
                stretches=(Stretch(0, output, number, "cell0.1", "stop"),),
                finish="stop",
                temperature=0.8,
                trainable=draw(st.booleans()) or draw(st.booleans()),
            )
        )
        if draw(st.integers(0, 4)) == 0:
            tree.withheld.add(rows[-1])
    return tree


def expected(tree: Tree) -> list[int]:
    """Every token that may train, told row by row."""
    rows = [r for r in range(len(tree)) if tree.kinds[r] is Kind.SAMPLED and r not in tree.withheld]
    return sorted(int(token) for row in rows for token in tree.ids(row))


@given(trees(), st.integers(0, 1000))
def test_uncapped_selection_trains_every_trainable_token_exactly_once(tree: Tree, seed: int):
    picks = select(tree, roles(tree), rng_for(seed, EXECUTION), len(tree) + 1)
    paths = [trajectory(tree, pick, EXECUTION) for pick in picks]
    assert sorted(int(token) for path in paths for token in path.ids[path.selected]) == expected(tree)
    assert sum(pick.tokens for pick in picks) == sum(trainable(tree)) == len(expected(tree))
    for pick, path in zip(picks, paths, strict=True):
        assert int(path.selected.sum()) == pick.tokens > 0
        assert path.ids.tolist() == tree.path_ids(pick.leaf).tolist()
        assert not path.selected[0]
        assert path.versions[-1][0] == pick.tokens


@given(trees(), st.integers(0, 1000), st.integers(1, 5))
def test_a_cap_takes_a_prefix_of_the_uncapped_draws(tree: Tree, seed: int, jmax: int):
    capped = select(tree, roles(tree), rng_for(seed, EXECUTION), jmax)
    assert len(capped) <= jmax
    assert capped == select(tree, roles(tree), rng_for(seed, EXECUTION), 100)[:jmax]


def sequences(micro_steps: list[MicroStep]) -> list[tuple[bytes, bytes, bytes]]:
    """What is trained, whatever the packing: each sequence with its weights, in a fixed order."""
    found: list[tuple[bytes, bytes, bytes]] = []
    for flat in map(flattened, micro_steps):
        cuts = np.cumsum(flat.lengths)[:-1]
        parts = (np.split(array, cuts) for array in (flat.ids, flat.weights, flat.logprobs))
        found += [(ids.tobytes(), w.tobytes(), p.tobytes()) for ids, w, p in zip(*parts, strict=True)]
    return sorted(found)


def targets(micro_steps: list[MicroStep]) -> dict[tuple[int, ...], tuple[float, float]]:
    """Path to a target, itself the last (ids are unique: a path is trained once) -> its weight and log-prob."""
    found: dict[tuple[int, ...], tuple[float, float]] = {}
    for flat in map(flattened, micro_steps):
        start = 0
        for length in flat.lengths:
            for t in range(start, start + length):
                if flat.weights[t]:
                    path = tuple(flat.ids[start : t + 1].tolist())
                    assert path not in found, "a sampled token is a target once"
                    found[path] = (float(flat.weights[t]), float(flat.logprobs[t]))
            start += length
    return found


@settings(max_examples=100)
@given(trees(), st.integers(1, 6), st.integers(12, 80), st.integers(8, 60))
def test_a_tree_trains_what_flat_rows_train(tree: Tree, jmax: int, size: int, first: int):
    settled = {0: Settlement(Verdict.SCORED, 1.0), 1: Settlement(Verdict.SCORED, 0.0)}
    recipe = Recipe(seed=0, jmax=jmax, microstep_tokens=size, max_sequence=4096, tree_depth=4096)
    flat = weigh(0, {0: tree}, settled, replace(recipe, tree_depth=0))
    packed = weigh(0, {0: tree}, settled, recipe)
    assert targets(packed) == targets(flat)
    assert sum(m.tokens for m in packed) <= sum(m.tokens for m in flat)
    for micro_step in packed:
        assert micro_step.tokens <= size or len(micro_step.lengths) == 1
        head, rest = split(micro_step, first)
        parts = [head] if rest is None else [head, rest]
        assert targets(parts) == targets([micro_step])
        assert sequences(parts) == sequences([micro_step])
        of_parts = [set(part.calls[part.weights != 0].tolist()) for part in parts]
        assert not set.intersection(*of_parts, set() if rest is None else of_parts[0]), "a model call is never cut"
    for micro_step in (*flat, *packed):
        for number in set(micro_step.calls[micro_step.weights != 0].tolist()):
            at = np.flatnonzero((micro_step.calls == number) & (micro_step.weights != 0))
            assert len(at) == trainable(tree)[number - 1]
            assert np.array_equal(before(micro_step)[at[1:]], at[:-1])


MEMBERS = st.lists(
    st.tuples(trees(), st.sampled_from(list(Verdict)), st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0])),
    min_size=2,
    max_size=4,
)


@settings(max_examples=60)
@given(MEMBERS, st.integers(1, 5), st.integers(16, 80), st.sampled_from([0, 4096]))
def test_weights_of_an_execution_sum_to_its_advantage(members, jmax: int, size: int, depth: int):
    # Ids of member m are shifted by 1000 m, so that a weighted token also names its execution.
    grown = {}
    for member, (tree, _, _) in enumerate(members):
        tree._ids.view[:] += 1000 * member
        grown[member] = tree
    settled = {m: Settlement(verdict, score) for m, (_, verdict, score) in enumerate(members)}
    recipe = Recipe(seed=0, jmax=jmax, microstep_tokens=size, max_sequence=4096, tree_depth=depth)
    micro_steps = weigh(0, grown, settled, recipe)
    ids = np.concatenate([m.ids for m in micro_steps]) if micro_steps else np.empty(0, np.int32)
    weights = np.concatenate([m.weights for m in micro_steps]) if micro_steps else np.empty(0, np.float32)
    of = advantages(settled)
    for member, tree in grown.items():
        mine = weights[(ids // 1000 == member) & (weights != 0)]
        worth = of.get(member, 0.0) if sum(trainable(tree)) else 0.0
        assert abs(float(mine.sum(dtype=np.float64)) - worth) < 1e-6
    trained = ids[weights != 0]
    assert len(set(trained.tolist())) == len(trained)
    for micro_step in micro_steps:
        assert micro_step.tokens <= size or len(micro_step.lengths) == 1
        starts = np.cumsum([0, *micro_step.lengths[:-1]])
        roots = [start for start, parent in zip(starts, micro_step.parents or [-1] * 99, strict=False) if parent < 0]
        assert not micro_step.weights[roots].any()
