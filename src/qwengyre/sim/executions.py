"""The executions of a simulated run: how long each works, how many tokens it makes, and how it ends.

Drawn from the parameters by a seed, or read from a trace. Either way they do not depend on the policy.
"""

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from qwengyre.errors import ConfigError
from qwengyre.schedule.state import Plan
from qwengyre.sim.workload import HOUR, Workload


@dataclass(frozen=True)
class Draw:
    """One execution: `work_s` unloaded seconds alone on a cell, tool time included; tokens a second of progress.

    `dropped`: it ends without a score, whatever it did. `settle_s`: scoring takes this long.
    """

    work_s: float
    tokens_per_s: float
    dropped: bool = False
    settle_s: float = 0.0


@dataclass(frozen=True)
class GroupDraw:
    """The N executions of a group. `weightless`: all scores are equal, nothing is trained."""

    executions: tuple[Draw, ...]
    weightless: bool = False


class Source(Protocol):
    """Where a world takes its groups from."""

    def group(self, index: int) -> GroupDraw:
        """Group `index` of the run, in order of dispatch; the same one for every policy."""
        ...


class Drawn:
    """Groups drawn from the parameters. Those beyond steps * B (replacements of void ones) have their own stream."""

    def __init__(self, workload: Workload, plan: Plan, seed: int) -> None:
        self._workload, self._size, self._seed = workload, plan.group_size, seed
        rng, groups, size = np.random.default_rng(seed), plan.steps * plan.groups_per_step, plan.group_size
        shared, own, noise = (rng.standard_normal(shape) for shape in (groups, (groups, size), (groups, size)))
        self._work, self._tokens = _amounts(workload, shared[:, None], own, noise)

    def group(self, index: int) -> GroupDraw:
        """See `Source`."""
        chance = np.random.default_rng([self._seed, 1, index])
        if index < len(self._work):
            work, tokens = self._work[index], self._tokens[index]
        else:
            z = chance.standard_normal((3, self._size))
            work, tokens = _amounts(self._workload, z[0, 0], z[1], z[2])
        return _with_failures(self._workload, work, tokens, chance)


class Trace:
    """Groups of a recorded trace, in its order; a run that needs more begins again at the first."""

    def __init__(self, workload: Workload, groups: list[list[tuple[float, float]]], seed: int = 0) -> None:
        self._workload, self._groups, self._seed = workload, groups, seed

    def __len__(self) -> int:
        return len(self._groups)

    def group(self, index: int) -> GroupDraw:
        """See `Source`."""
        pairs = np.array(self._groups[index % len(self._groups)])
        chance = np.random.default_rng([self._seed, 1, index])
        return _with_failures(self._workload, pairs[:, 0], pairs[:, 1], chance)


def _amounts(
    workload: Workload, shared: np.ndarray, own: np.ndarray, noise: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(unloaded seconds, tokens a second) from standard normal numbers."""
    p = workload.exec
    hours = np.maximum(p.floor_h, p.median_h * np.exp(p.sigma_group * shared + p.sigma_within * own))
    return hours * HOUR, p.tokens_per_h / HOUR * np.exp(p.sigma_tok * noise - p.sigma_tok**2 / 2)


def _with_failures(workload: Workload, work: np.ndarray, tokens: np.ndarray, chance: np.random.Generator) -> GroupDraw:
    p = workload.failures
    size = len(work)
    dropped, slow = chance.random(size) < p.dropped, chance.random(size) < p.slow_verifiers
    settle = workload.cost.settle_s + p.slow_s * slow
    draws = zip(work.tolist(), tokens.tolist(), dropped.tolist(), settle.tolist(), strict=True)
    return GroupDraw(tuple(Draw(*draw) for draw in draws), bool(chance.random() < p.weightless))


def read_trace(path: Path, workload: Workload, seed: int = 0) -> Trace:
    """A trace CSV: `group,member,work_s,tokens_per_s`, one row an execution. Raises ConfigError."""
    try:
        with path.open(newline="") as file:
            return trace_of_rows(csv.DictReader(file), str(path), workload, seed)
    except FileNotFoundError:
        raise ConfigError(f"no trace at {path}: give a CSV file with group,member,work_s,tokens_per_s") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a trace: {error}") from None


def trace_of_rows(rows: Iterable[dict[str, str]], name: str, workload: Workload, seed: int = 0) -> Trace:
    """A trace from rows of text. Groups come in the order of their numbers. Raises ConfigError."""
    groups: dict[int, dict[int, tuple[float, float]]] = {}
    size = workload.rl.execs_per_group
    for number, row in enumerate(rows, start=2):
        try:
            group, member = int(row["group"]), int(row["member"])
            pair = float(row["work_s"]), float(row["tokens_per_s"])
        except (KeyError, TypeError, ValueError):
            raise ConfigError(f"{name} line {number}: expected numbers in group,member,work_s,tokens_per_s") from None
        if not (pair[0] >= 0 and 0 <= pair[1] < float("inf")):
            raise ConfigError(f"{name} line {number}: work_s and tokens_per_s are at least 0 (work_s may be inf)")
        if groups.setdefault(group, {}).setdefault(member, pair) is not pair:
            raise ConfigError(f"{name} line {number}: execution {group}-{member} stands there twice")
    if not groups:
        raise ConfigError(f"{name} holds no execution")
    for group, members in groups.items():
        if len(members) != size:
            raise ConfigError(
                f"{name}: group {group} has {len(members)} executions, rl.execs_per_group is {size}: make them equal"
            )
    return Trace(workload, [[pair for _, pair in sorted(groups[g].items())] for g in sorted(groups)], seed)
