"""The data of groups: settlements and call journals in, weighed micro-steps out, rebuilt from disk at any time.

Control keeps only settlements and small sums; micro-steps of a group stay until its step is closed, and can be made
again from `calls/` and the seed (they are the same, byte for byte).
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from qwengyre.cluster.record import GroupSummary
from qwengyre.gateway.journal import read_calls, rebuild
from qwengyre.schedule.events import Settled
from qwengyre.trajectory.credit import advantages
from qwengyre.trajectory.pack import Recipe, pack, sequences
from qwengyre.trajectory.tree import Tree
from qwengyre.types import ExecutionId, MicroStep, ModelCall, Settlement, Verdict


@dataclass(frozen=True)
class _Sizes:
    """Of a weighed group: its trajectories, their tokens in flat rows; member -> its sampled tokens; who trains."""

    trajectories: int
    flat_tokens: int
    lengths: dict[int, int]
    trained: list[int]


@dataclass
class Groups:
    """See the module. `calls` is the folder of call journals."""

    calls: Path
    group_size: int
    recipe: Recipe
    _settled: dict[ExecutionId, Settlement] = field(default_factory=dict[ExecutionId, Settlement])
    _weighed: dict[int, list[MicroStep]] = field(default_factory=dict[int, list[MicroStep]])
    _num_calls: dict[int, int] = field(default_factory=dict[int, int])
    _sizes: dict[int, "_Sizes"] = field(default_factory=dict[int, "_Sizes"])

    def settle(self, event: Settled) -> None:
        """Fold a settlement of the journal; only the first word about an execution counts."""
        self._settled.setdefault(event.execution, Settlement(event.verdict, event.score))

    async def weigh(self, group: int) -> list[MicroStep]:
        """Freeze, select, weigh and pack; the same answer every time it is asked."""
        if group not in self._weighed:
            self._weighed[group] = await asyncio.to_thread(self._weigh, group)
        return self._weighed[group]

    def forget(self, group: int) -> None:
        """The group's step is closed: its micro-steps leave memory."""
        self._weighed.pop(group, None)

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
            targets=sum(int(np.count_nonzero(m.weights)) for m in micro_steps),
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

    def _weigh(self, group: int) -> list[MicroStep]:
        settled = self._members(group)
        trees: dict[int, Tree] = {}
        calls: dict[int, tuple[ModelCall, ...]] = {}
        for member, settlement in settled.items():
            path = self.calls / f"{ExecutionId(group, member)}.calls"
            if settlement.verdict is not Verdict.DROPPED and path.exists():
                log = read_calls(path)
                if log.calls:
                    trees[member], calls[member] = rebuild(path), log.calls
        self._num_calls[group] = sum(map(len, calls.values()))
        found = sequences(group, trees, settled, self.recipe, calls)
        trained = [member for member, advantage in advantages(settled).items() if advantage and member in trees]
        lengths = {member: tree.num_sampled for member, tree in trees.items()}
        self._sizes[group] = _Sizes(len(found), sum(len(sequence.ids) for sequence in found), lengths, trained)
        return pack(group, found, self.recipe)
