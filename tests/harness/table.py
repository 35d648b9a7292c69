"""What `make test-harness` prints at its end: a line for each whole session of a real harness."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from qwengyre import profiles
from qwengyre.gateway.journal import CallLog
from qwengyre.trajectory.roles import LeafRole
from qwengyre.trajectory.tree import Tree
from qwengyre.types import Ids

HEAD = (
    "harness",
    "task",
    "calls",
    "other forks",
    "re-encoded",
    "roles",
    "score",
    "moved",
    "engine killed",
    "log-probs",
)


@dataclass
class Row:
    """One session. `score`, `moved`, `killed` and `logprobs` are words, filled in as the tests find them."""

    harness: str
    task: str
    calls: int
    forks: int
    """Outside the profile's known ones."""
    again: int
    """Tokens of a context line that were encoded a second time inside it."""
    roles: str
    score: str = ""
    moved: str = ""
    killed: str = ""
    logprobs: str = ""


ROWS: list[Row] = []
"""Of the test that runs."""


@dataclass(frozen=True)
class Expected:
    """Written by hand: the class of each leaf, and how often the history forks, by the profile's names of it.

    A sub-agent's line is no fork of the line that started it.
    """

    roles: tuple[str, ...]
    forks: Mapping[str, int] = field(default_factory=dict[str, int])
    sub_agents: int = 0


def checked(
    harness: str, task: str, tree: Tree, log: CallLog, roles: Mapping[int, LeafRole], expected: Expected
) -> Row:
    """Compare a session's tree with what was expected of it, and keep its line of the table."""
    known = {fork.name for fork in profiles.read(harness).known_forks}
    assert set(expected.forks) <= known, f"{harness}: {set(expected.forks) - known} are not in its profile"
    leaves = list(tree.leaves())
    found = sorted(roles[leaf].role for leaf in leaves)
    forks = len(leaves) - 1 - expected.sub_agents - sum(expected.forks.values())
    right = found == sorted(expected.roles)
    row = Row(harness, task, len(log.calls), forks, again(tree, log), "right" if right else "WRONG")
    ROWS.append(row)
    why = [(tree.calls[leaf], tuple(roles[leaf])) for leaf in leaves]
    print(
        *((c.call, c.thread[-4:], c.match, c.parent, c.suffix.size, c.output.size) for c in log.calls), *why, sep="\n"
    )
    assert forks == 0, (forks, why)
    assert row.again == 0
    assert right, why
    return row


def again(tree: Tree, log: CallLog) -> int:
    """Tokens that were encoded again: where a prompt begins with all ids of an earlier call, those that its own parent
    in the tree does not hold."""
    row_of = {tree.calls[row]: row for row in tree.versions}
    held: list[Ids] = []
    tokens = 0
    for call in log.calls:
        prompt = np.concatenate([tree.path_ids(call.parent), call.suffix])
        known = (len(ids) for ids in held if len(ids) <= len(prompt) and np.array_equal(ids, prompt[: len(ids)]))
        tokens += max(0, max(known, default=0) - (len(prompt) - len(call.suffix)))
        held.append(tree.path_ids(row_of[call.call]))
    return tokens


def lines(rows: Iterable[Row]) -> list[str]:
    """The table."""
    cells = [HEAD, *([str(value) for value in vars(row).values()] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(HEAD))]
    return ["  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip() for line in cells]
