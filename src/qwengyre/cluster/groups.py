"""The data of groups: settlements and call journals in, weighed micro-steps out, rebuilt from disk at any time.

Control keeps settlements and small sums. The trees of a group that is weighed lie in maps (`calls/<execution>.tree`)
until its step is closed. Its micro-steps, too, once it is admitted; those of groups that wait are dropped when they
are many, and made again (they are the same, byte for byte).
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from qwengyre.cluster.record import GroupSummary
from qwengyre.gateway.frozen import Frozen, frozen
from qwengyre.schedule.events import Settled
from qwengyre.trajectory.credit import advantages
from qwengyre.trajectory.pack import Recipe, pack, sequences
from qwengyre.trajectory.roles import KNOWN, Table
from qwengyre.types import ExecutionId, MicroStep, Settlement, Verdict

WAITING_TOKENS = 2**22
"""Of micro-steps that are kept for groups that wait to be admitted: 16 bytes each."""


@dataclass(frozen=True)
class _Sizes:
    """Of a weighed group: its trajectories, their tokens in flat rows; member -> its sampled tokens; who trains."""

    trajectories: int
    flat_tokens: int
    lengths: dict[int, int]
    trained: list[int]


@dataclass
class Groups:
    """See the module. `calls` is the folder of call journals; `table` tells the roles of a harness's calls."""

    calls: Path
    group_size: int
    recipe: Recipe
    table: Table = KNOWN
    _settled: dict[ExecutionId, Settlement] = field(default_factory=dict[ExecutionId, Settlement])
    _weighed: dict[int, list[MicroStep]] = field(default_factory=dict[int, list[MicroStep]])
    _admitted: set[int] = field(default_factory=set[int])
    _num_calls: dict[int, int] = field(default_factory=dict[int, int])
    _sizes: dict[int, "_Sizes"] = field(default_factory=dict[int, "_Sizes"])

    def settle(self, event: Settled) -> None:
        """Fold a settlement of the journal; only the first word about an execution counts."""
        self._settled.setdefault(event.execution, Settlement(event.verdict, event.score))

    async def weigh(self, group: int, *, admitted: bool = False) -> list[MicroStep]:
        """Freeze, select, weigh and pack; the same answer every time it is asked. `admitted`: it will be trained now,
        and is kept until `forget`."""
        if admitted:
            self._admitted.add(group)
        if group not in self._weighed:
            self._weighed[group] = await asyncio.to_thread(self._weigh, group)
        found = self._weighed[group]
        self._drop_waiting()
        return found

    def forget(self, group: int) -> None:
        """The group's step is closed: its micro-steps leave memory, its trees the disk (their journals stay)."""
        self._weighed.pop(group, None)
        self._admitted.discard(group)
        for member in range(self.group_size):
            self._journal(group, member).with_suffix(".tree").unlink(missing_ok=True)

    def summary(self, group: int, dispatched_steps: int) -> GroupSummary:
        """What the metrics line of its step says of a weighed group. `dispatched_steps` is its v_d."""
        micro_steps, settled = self._weighed[group], self._members(group)
        sizes = self._sizes[group]
        kept = tuple(s.score for s in settled.values() if s.verdict is not Verdict.DROPPED)
        return GroupSummary(
            group=group,
            dispatched_steps=dispatched_steps,
            scores=kept,
            num_dropped=len(settled) - len(kept),
            trajectories=sizes.trajectories,
            targets=sum(int(np.count_nonzero(m.wanted)) for m in micro_steps),
            calls=self._num_calls[group],
            flat_tokens=sizes.flat_tokens,
            lengths=tuple(sizes.lengths.values()),
            trained_lengths=tuple(sizes.lengths[member] for member in sizes.trained),
        )

    def verdicts(self) -> dict[str, int]:
        """Executions by verdict."""
        counts = Counter(s.verdict for s in self._settled.values())
        return {str(v): counts[v] for v in Verdict}

    def _members(self, group: int) -> dict[int, Settlement]:
        return {n: self._settled[ExecutionId(group, n)] for n in range(self.group_size)}

    def _journal(self, group: int, member: int) -> Path:
        return self.calls / f"{ExecutionId(group, member)}.calls"

    def _drop_waiting(self) -> None:
        """While they are too many, the newest first: the oldest are trained next."""
        groups = sorted(self._weighed.keys() - self._admitted, reverse=True)
        waiting = {group: sum(m.tokens for m in self._weighed[group]) for group in groups}
        for group in groups:
            if sum(waiting.values()) > WAITING_TOKENS:
                del self._weighed[group], waiting[group]

    def _weigh(self, group: int) -> list[MicroStep]:
        settled = self._members(group)
        held: dict[int, Frozen] = {}
        for member, settlement in settled.items():
            path = self._journal(group, member)
            if settlement.verdict is not Verdict.DROPPED and path.exists():
                found = frozen(path, self.table)
                if found.calls:
                    held[member] = found
        self._num_calls[group] = sum(found.calls for found in held.values())
        trees = {member: found.tree() for member, found in held.items()}
        chosen = sequences(group, trees, settled, self.recipe, {member: found.roles for member, found in held.items()})
        shares = self.recipe.shares
        trained = [m for m, advantage in advantages(settled).items() if (advantage or shares) and m in trees]
        lengths = {member: tree.num_sampled for member, tree in trees.items()}
        self._sizes[group] = _Sizes(len(chosen), sum(len(sequence.ids) for sequence in chosen), lengths, trained)
        return pack(group, chosen, self.recipe)
