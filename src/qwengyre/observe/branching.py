"""What was selected of an execution's tree, and why: for `inspect` and the summary of a run. Reads its call journal."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qwengyre.gateway.journal import CallLog, read_calls, rebuild
from qwengyre.profiles import told
from qwengyre.trajectory.roles import AUXILIARY, KNOWN, MAIN, LeafRole, Table, roles
from qwengyre.trajectory.select import Pick, rng_for, select, trainable
from qwengyre.trajectory.tree import Tree
from qwengyre.types import ExecutionId

LOOKED_AT = 64
"""Call journals that are read in search of the most branching execution: the largest."""
LOOKED_AT_BYTES = 64 * 2**20
"""And so much of them, at most."""


@dataclass(frozen=True)
class Selection:
    """One execution's tree, its leaves with their roles, and the picks in the order drawn."""

    execution: ExecutionId
    log: CallLog
    tree: Tree
    roles: dict[int, LeafRole]
    picks: list[Pick]
    jmax: int

    @property
    def threads(self) -> int:
        """Context lines of the harness."""
        return len(set(self.tree.threads))

    def lines(self) -> Iterator[str]:
        """A line a leaf: the picked ones in the order drawn, then the others."""
        left = trainable(self.tree)
        for number, pick in enumerate(self.picks):
            yield f"trajectory {number}: leaf {pick.leaf}, {pick.tokens} trainable tokens: {self._why(pick, left)}"
            for row in pick.rows:
                left[row] = 0
        picked = {pick.leaf for pick in self.picks}
        for leaf in (leaf for leaf in self.roles if leaf not in picked):
            yield f"not taken: leaf {leaf}: {self._why_not(leaf, left)}"

    def _why(self, pick: Pick, left: Sequence[int]) -> str:
        evidence = f" ({self.roles[pick.leaf].evidence})" if pick.role != MAIN else ""
        rivals = [leaf for leaf, found in self.roles.items() if found.role == pick.role]
        tokens = {leaf: sum(left[row] for row in self.tree.path(leaf)) for leaf in rivals}
        drawn = {leaf: count for leaf, count in tokens.items() if count}
        if len(drawn) == 1:
            return f"{pick.role}, the only leaf of its class with tokens left{evidence}"
        whole = sum(drawn.values())
        return f"{pick.role}, drawn among {len(drawn)} leaves with chance {pick.tokens}/{whole}{evidence}"

    def _why_not(self, leaf: int, left: Sequence[int]) -> str:
        role, evidence = self.roles[leaf].role, self.roles[leaf].evidence
        if role == AUXILIARY:
            return f"auxiliary, never trained ({evidence})"
        if self.execution.evaluation >= 0:
            return f"{role}, of an evaluation, never trained"
        tokens = sum(left[row] for row in self.tree.path(leaf))
        if not tokens:
            return f"{role}, all that trains on its path is in the trajectories above"
        return f"{role}, {tokens} tokens left, but rl.jmax={self.jmax} were taken"


def rules(config: Mapping[str, Any]) -> tuple[int, int, Table]:
    """(seed, jmax, table of its harness) of a run's `config.toml`: what its selection depends on beside the tree."""
    return config["run"]["seed"], config["rl"]["jmax"], Table.of(told(config.get("harness", {}).get("kind", "")))


def selection(path: Path, seed: int, jmax: int, table: Table = KNOWN) -> Selection:
    """Of the call journal at `path`, as the run's own seed selects. One of an evaluation has no picks."""
    execution, log, tree = ExecutionId.parse(path.stem), read_calls(path), rebuild(path)
    classes = roles(tree, log.calls, table)
    trained = execution.evaluation < 0
    picks = select(tree, classes, rng_for(seed, execution), jmax) if trained else []
    return Selection(execution, log, tree, classes, picks, jmax)


def most_branching(
    calls: Path, seed: int, jmax: int, table: Table = KNOWN, scores: Mapping[str, float] | None = None
) -> Selection | None:
    """The trained execution with the most leaves (then threads, then one of a group whose `scores` differ, then calls);
    None: no call was recorded."""
    spread: dict[int, set[float]] = {}
    for name, score in (scores or {}).items():
        spread.setdefault(ExecutionId.parse(name).group, set()).add(score)
    files = [path for path in calls.glob("*.calls") if ExecutionId.parse(path.stem).evaluation < 0]
    best: tuple[tuple[int, int, bool, int], Path] | None = None
    read = 0
    for path in sorted(files, key=lambda path: (-path.stat().st_size, path.name))[:LOOKED_AT]:
        read += path.stat().st_size
        if best is not None and read > LOOKED_AT_BYTES:
            break
        tree = rebuild(path)
        teaches = len(spread.get(ExecutionId.parse(path.stem).group, ())) > 1
        size = len(list(tree.leaves())), len(set(tree.threads)), teaches, len(set(tree.calls))
        if len(tree) and (best is None or size > best[0]):
            best = size, path
    return selection(best[1], seed, jmax, table) if best else None
