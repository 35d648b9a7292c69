"""A ready group to micro-steps: the whole story of `weigh`, top to bottom.

tree -> roles -> picks -> (advantage / selected tokens) -> weighted sequences -> micro-steps of bounded size
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from qwengyre.trajectory.credit import advantages
from qwengyre.trajectory.roles import roles
from qwengyre.trajectory.select import rng_for, select, trajectory
from qwengyre.trajectory.tree import Tree
from qwengyre.types import ExecutionId, Floats, Ids, MicroStep, ModelCall, Settlement, Trajectory


@dataclass(frozen=True)
class Recipe:
    """How a group is weighed and cut: Jmax, sizes in tokens; `std` divides advantages by the group's deviation."""

    seed: int
    jmax: int
    microstep_tokens: int
    max_sequence: int
    std: bool = False


@dataclass(frozen=True)
class Weighted:
    """A trajectory up to its last target. `weights[t]` (float32) is A_e / T_e for a target, else 0."""

    ids: Ids
    weights: Floats
    logprobs: Floats
    temperature: float


def weigh(
    group: int,
    trees: Mapping[int, Tree],
    settlements: Mapping[int, Settlement],
    recipe: Recipe,
    calls: Mapping[int, Sequence[ModelCall]] | None = None,
) -> list[MicroStep]:
    """The micro-steps of a group whose members have all settled, in a fixed order. Keys are members.

    A member without a tree (no model call), or with an advantage of 0, adds none. `calls` are evidence for roles.
    Raises ValueError when a trajectory is longer than `recipe.max_sequence`: the window served should forbid it.
    """
    sequences: list[Weighted] = []
    for member, advantage in advantages(settlements, std=recipe.std).items():
        if advantage == 0 or member not in trees:
            continue
        tree, execution = trees[member], ExecutionId(group, member)
        picks = select(tree, roles(tree, (calls or {}).get(member, ())), rng_for(recipe.seed, execution), recipe.jmax)
        targets = sum(pick.tokens for pick in picks)  # T_e
        sequences += [weighted(trajectory(tree, pick, execution), advantage / targets) for pick in picks]
    return pack(group, sequences, recipe.microstep_tokens, recipe.max_sequence)


def weighted(path: Trajectory, weight: float) -> Weighted:
    """`path` with `weight` on each selected token, cut after the last of them: what follows changes no gradient."""
    end = int(np.flatnonzero(path.selected)[-1]) + 1
    selected = path.selected[:end]
    weights = np.where(selected, np.float32(weight), np.float32(0))
    return Weighted(path.ids[:end], weights, np.where(selected, path.logprobs[:end], np.float32(0)), path.temperature)


def pack(group: int, sequences: Sequence[Weighted], microstep_tokens: int, max_sequence: int) -> list[MicroStep]:
    """Longest first, each into the first micro-step of its temperature that has room; one too long gets its own.

    Sorting puts like lengths together, which is what a trainer that pads wants. Names are `g<group>.<k>`.
    """
    bins: list[list[Weighted]] = []
    rooms: list[int] = []
    for sequence in sorted(sequences, key=lambda s: -len(s.ids)):
        size = len(sequence.ids)
        if size > max_sequence:
            raise ValueError(f"group {group}: a trajectory of {size} tokens, at most {max_sequence} can be trained")
        fits = (k for k, room in enumerate(rooms) if size <= room and bins[k][0].temperature == sequence.temperature)
        k = next(fits, len(bins))
        if k == len(bins):
            bins.append([])
            rooms.append(microstep_tokens)
        bins[k].append(sequence)
        rooms[k] -= size
    return [_micro_step(f"g{group}.{k}", group, members) for k, members in enumerate(bins)]


def _micro_step(name: str, group: int, members: Sequence[Weighted]) -> MicroStep:
    return MicroStep(
        name=name,
        group=group,
        ids=np.concatenate([member.ids for member in members]),
        lengths=tuple(len(member.ids) for member in members),
        weights=np.concatenate([member.weights for member in members]),
        logprobs=np.concatenate([member.logprobs for member in members]),
        temperature=members[0].temperature,
    )


def split(micro_step: MicroStep, tokens: int) -> tuple[MicroStep, MicroStep | None]:
    """Cut between two sequences: the first part has at least one, and at most `tokens` tokens if it has more.

    The second is None when nothing is left. Names are `<name>/<sequences before the cut>` and so on, unique for every
    way of cutting; the gradients of the parts add up to that of the whole.
    """
    ends = np.cumsum(micro_step.lengths)
    k = max(1, int(np.searchsorted(ends, tokens, side="right")))
    if k >= len(micro_step.lengths):
        return micro_step, None
    cut = int(ends[k - 1])
    name, _, first = micro_step.name.partition("/")
    start = int(first.split("-")[0]) if first else 0
    middle, end = start + k, start + len(micro_step.lengths)
    return (
        _part(micro_step, f"{name}/{start}-{middle}", slice(0, cut), slice(0, k)),
        _part(micro_step, f"{name}/{middle}-{end}", slice(cut, None), slice(k, None)),
    )


def _part(whole: MicroStep, name: str, tokens: slice, sequences: slice) -> MicroStep:
    return MicroStep(
        name=name,
        group=whole.group,
        ids=whole.ids[tokens],
        lengths=whole.lengths[sequences],
        weights=whole.weights[tokens],
        logprobs=whole.logprobs[tokens],
        temperature=whole.temperature,
    )
