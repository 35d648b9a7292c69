"""A ready group to micro-steps: the whole story of `weigh`, top to bottom.

tree -> roles -> picks -> (advantage / selected tokens) -> weighted sequences -> micro-steps of bounded size

A micro-step is flat rows, or one tree in which a prefix shared by its sequences stands once: the branches of an
execution, and the context that the executions of a group have in common. A tree is chosen when it saves enough tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from qwengyre.trajectory.credit import advantages
from qwengyre.trajectory.cut import cut
from qwengyre.trajectory.prefix import Keys, depth_first, keys_of, owners
from qwengyre.trajectory.roles import LeafRole, roles
from qwengyre.trajectory.runs import path, paths
from qwengyre.trajectory.select import rng_for, select, trajectory
from qwengyre.trajectory.tree import Tree
from qwengyre.types import ExecutionId, Floats, Ids, MicroStep, Settlement, Trajectory

WORTH = 0.95
"""A tree is made when its tokens are less than this part of the flat rows': rows make larger, plainer products."""


@dataclass(frozen=True)
class Recipe:
    """How a group is weighed and cut: Jmax, sizes in tokens; `std` divides advantages by the group's deviation.

    `tree_depth`: longest sequence of which the model can share prefixes in one pass (0: none, all rows are flat).
    `shares`: the loss has terms beside the advantage's, so that members with an advantage of 0 are trained, too.
    """

    seed: int
    jmax: int
    microstep_tokens: int
    max_sequence: int
    std: bool = False
    tree_depth: int = 0
    shares: bool = False


@dataclass(frozen=True)
class Weighted:
    """A trajectory up to its last target. `weights[t]` (float32) is A_e / T_e for a target, else 0; `shares[t]` is
    1 / T_e where the recipe asks for them.

    `keys` (int64): what may stand once for several sequences, see `prefix`.
    """

    ids: Ids
    weights: Floats
    logprobs: Floats
    temperature: float
    keys: Keys
    shares: Floats | None = None


def weigh(
    group: int,
    trees: Mapping[int, Tree],
    settlements: Mapping[int, Settlement],
    recipe: Recipe,
    classes: Mapping[int, Mapping[int, LeafRole]] | None = None,
) -> list[MicroStep]:
    """The micro-steps of a group whose members have all settled, in a fixed order. Keys are members.

    A member without a tree (no model call), or (but for `recipe.shares`) with an advantage of 0, adds none. `classes`
    has the roles of each one's leaves; where it has not, the tree alone tells them.
    Raises ValueError when a trajectory is longer than `recipe.max_sequence`: the window served should forbid it.
    """
    return pack(group, sequences(group, trees, settlements, recipe, classes), recipe)


def sequences(
    group: int,
    trees: Mapping[int, Tree],
    settlements: Mapping[int, Settlement],
    recipe: Recipe,
    classes: Mapping[int, Mapping[int, LeafRole]] | None = None,
) -> list[Weighted]:
    """The selected trajectories of a group, weighed; arguments as of `weigh`."""
    found: list[Weighted] = []
    base = 0
    for member, advantage in advantages(settlements, std=recipe.std).items():
        if (advantage == 0 and not recipe.shares) or member not in trees:
            continue
        tree, execution = trees[member], ExecutionId(group, member)
        of_leaves = (classes or {}).get(member) or roles(tree)
        picks = select(tree, of_leaves, rng_for(recipe.seed, execution), recipe.jmax)
        targets = sum(pick.tokens for pick in picks)  # T_e
        share = 1 / targets if recipe.shares and targets else None
        found += [weighted(trajectory(tree, pick, execution), advantage / targets, base, share) for pick in picks]
        base += len(tree)
    return found


def weighted(path: Trajectory, weight: float, base: int = 0, share: float | None = None) -> Weighted:
    """`path` with `weight`, and `share`, on each selected token, cut after the last of them: what follows changes no
    gradient. `base` keeps the rows of different executions apart.
    """
    end = int(np.flatnonzero(path.selected)[-1]) + 1
    selected = path.selected[:end]
    weights = np.where(selected, np.float32(weight), np.float32(0))
    logprobs = np.where(selected, path.logprobs[:end], np.float32(0))
    keys = keys_of(path.ids[:end], path.rows[:end], base)
    shares = None if share is None else np.where(selected, np.float32(share), np.float32(0))
    return Weighted(path.ids[:end], weights, logprobs, path.temperature, keys, shares)


def pack(group: int, found: Sequence[Weighted], recipe: Recipe) -> list[MicroStep]:
    """Micro-steps of one temperature each, at most `recipe.microstep_tokens` long unless of one sequence alone, of
    about equal cost. Names are `g<group>.<k>`. Raises ValueError for a sequence that cannot be trained."""
    longest = max((len(sequence.ids) for sequence in found), default=0)
    if longest > recipe.max_sequence:
        raise ValueError(
            f"group {group}: a trajectory of {longest} tokens, at most {recipe.max_sequence} can be trained"
        )
    by_temperature: dict[float, list[Weighted]] = {}
    for sequence in sorted(found, key=lambda s: -len(s.ids)):  # like lengths together: rows are padded
        by_temperature.setdefault(sequence.temperature, []).append(sequence)
    made: list[MicroStep] = []
    for members in by_temperature.values():
        made += _flat_or_tree(members, recipe)
    return [replace(micro_step, name=f"g{group}.{k}", group=group) for k, micro_step in enumerate(made)]


def _flat_or_tree(members: Sequence[Weighted], recipe: Recipe) -> list[MicroStep]:
    """All of `members`, the longest first, as trees where they fit and are worth it."""
    lengths = [len(member.ids) for member in members]
    if max(lengths) <= recipe.tree_depth:
        order, shared = depth_first([member.keys for member in members])
        parts = cut([lengths[k] for k in order], shared, recipe.microstep_tokens)
        trees = [_tree([members[order[k]] for k in part], [shared[k] for k in part]) for part in parts]
        if sum(tree.tokens for tree in trees) <= WORTH * sum(lengths):
            return trees
    parts = cut(lengths, [0] * len(lengths), recipe.microstep_tokens)
    return [_flat([members[k] for k in part]) for part in parts]


def _flat(members: Sequence[Weighted]) -> MicroStep:
    return MicroStep(
        name="",
        group=0,
        ids=np.concatenate([member.ids for member in members]),
        lengths=tuple(len(member.ids) for member in members),
        weights=np.concatenate([member.weights for member in members]),
        logprobs=np.concatenate([member.logprobs for member in members]),
        temperature=members[0].temperature,
        calls=np.concatenate([owners(member.keys) for member in members]),
        shares=_concatenated([member.shares for member in members]),
    )


def _tree(members: Sequence[Weighted], shared: Sequence[int]) -> MicroStep:
    """Depth-first `members`; `shared[k]` tokens are those of the one before. A target stands at one of them."""
    kept = [0, *shared[1:]]
    runs = _flat([_without(member, common) for member, common in zip(members, kept, strict=True)])
    here = np.empty(0, np.int64)  # indices of the path of the member before
    lengths: list[int] = []
    parents: list[int] = []
    for member, common in zip(members, kept, strict=True):
        start, own = sum(lengths), len(member.ids) - common
        runs.weights[here[:common]] += member.weights[:common]
        runs.logprobs[here[:common]] += member.logprobs[:common]
        if runs.shares is not None and member.shares is not None:
            runs.shares[here[:common]] += member.shares[:common]
        if own:
            lengths.append(own)
            parents.append(int(here[common - 1]) if common else -1)
            here = np.concatenate([here[:common], np.arange(start, start + own)])
    return replace(runs, lengths=tuple(lengths), parents=_unless_flat(tuple(parents)))


def _without(member: Weighted, common: int) -> Weighted:
    return replace(
        member,
        ids=member.ids[common:],
        weights=member.weights[common:],
        logprobs=member.logprobs[common:],
        keys=member.keys[common:],
        shares=None if member.shares is None else member.shares[common:],
    )


def _concatenated(parts: Sequence[Floats | None]) -> Floats | None:
    """All of them, if they are there."""
    there = [part for part in parts if part is not None]
    return np.concatenate(there) if there else None


def split(micro_step: MicroStep, tokens: int) -> tuple[MicroStep, MicroStep | None]:
    """Cut between two sequences: the first part has at least one, and at most `tokens` tokens if it has more.

    The second is None when nothing is left. Names are `<name>/<sequences before the cut>` and so on, unique for every
    way of cutting; the gradients of the parts add up to that of the whole.
    """
    ends = np.cumsum(micro_step.lengths)
    k = max(1, int(np.searchsorted(ends, tokens, side="right")))
    if k >= len(micro_step.lengths):
        return micro_step, None
    cut_at = int(ends[k - 1])
    name, _, first = micro_step.name.partition("/")
    start = int(first.split("-")[0]) if first else 0
    middle, end = start + k, start + len(micro_step.lengths)
    return (
        _part(micro_step, f"{name}/{start}-{middle}", slice(0, cut_at), slice(0, k)),
        _regrown(micro_step, _part(micro_step, f"{name}/{middle}-{end}", slice(cut_at, None), slice(k, None)), cut_at),
    )


def _part(whole: MicroStep, name: str, tokens: slice, runs: slice) -> MicroStep:
    return MicroStep(
        name=name,
        group=whole.group,
        ids=whole.ids[tokens],
        lengths=whole.lengths[runs],
        weights=whole.weights[tokens],
        logprobs=whole.logprobs[tokens],
        temperature=whole.temperature,
        parents=_unless_flat(whole.parents[runs]),
        calls=None if whole.calls is None else whole.calls[tokens],
        shares=None if whole.shares is None else whole.shares[tokens],
    )


def _regrown(whole: MicroStep, rest: MicroStep, cut_at: int) -> MicroStep:
    """`rest` of a tree cut at `cut_at`, with what it continues of the other part in front, without weight."""
    if not rest.parents:
        return rest
    first = rest.parents[0]  # depth-first: what later runs continue lies on the way to it, or in the rest itself
    trunk = path(whole, paths(whole), first) if first >= 0 else np.empty(0, np.int64)
    silent = np.zeros(len(trunk), np.float32)
    parents = [
        parent + len(trunk) - cut_at if parent >= cut_at else int(np.searchsorted(trunk, parent)) if parent >= 0 else -1
        for parent in rest.parents[1:]
    ]
    return replace(
        rest,
        ids=np.concatenate([whole.ids[trunk], rest.ids]),
        lengths=(len(trunk) + rest.lengths[0], *rest.lengths[1:]),
        weights=np.concatenate([silent, rest.weights]),
        logprobs=np.concatenate([silent, rest.logprobs]),
        parents=_unless_flat((-1, *parents)),
        calls=None if whole.calls is None or rest.calls is None else np.concatenate([whole.calls[trunk], rest.calls]),
        shares=None if rest.shares is None else np.concatenate([silent, rest.shares]),
    )


def _unless_flat(parents: tuple[int, ...]) -> tuple[int, ...]:
    """No parents where each run is a whole sequence."""
    return parents if any(parent >= 0 for parent in parents) else ()
