"""Context lines of a tree, and leaves that their own line went on without: superseded, or a dead end.

Marks are for humans and for analysis: what was delivered trains, whatever became of it.
"""

from collections.abc import Collection, Mapping

from qwengyre.trajectory.tree import ROOT, Tree
from qwengyre.types import Kind

SUPERSEDED = "superseded"
"""The same prompt was asked again, later."""
DEAD_END = "dead end"
"""The line went on from a place before it, later."""


def lines(tree: Tree) -> list[int]:
    """For each row, the call that began its context line: the first one on its path that had no answer before it.

    A call that adds no message to a context without an answer asks again, in the same line.
    """
    found: list[int] = []
    answered: list[bool] = []
    for row, parent in enumerate(tree.parents):
        call, kind = tree.calls[row], tree.kinds[row]
        if parent == ROOT:
            found.append(call)
        elif answered[parent] or kind is not Kind.CONTEXT or tree.calls[parent] == call:
            found.append(found[parent])
        else:
            found.append(call)
        answered.append(kind is Kind.SAMPLED or (parent != ROOT and answered[parent]))
    return found


def marks(tree: Tree, line_of: list[int], errands: Collection[int]) -> Mapping[int, tuple[str, int]]:
    """Leaf -> (mark, the call that went on without it). `errands`: calls that say nothing of their line's way, such as
    summaries."""
    newest = _newest(tree, errands)
    children: dict[int, list[int]] = {}
    for row, parent in enumerate(tree.parents):
        children.setdefault(parent, []).append(row)
    found: dict[int, tuple[str, int]] = {}
    for leaf in tree.leaves():
        if tree.calls[leaf] not in errands and (mark := _mark(tree, line_of, leaf, children, newest)):
            found[leaf] = mark
    return found


def _newest(tree: Tree, errands: Collection[int]) -> list[int]:
    """For each row, the newest call with a sampled row at or below it; -1: none. Children come after parents."""
    newest = [-1] * len(tree)
    for row in range(len(tree) - 1, -1, -1):
        if tree.kinds[row] is Kind.SAMPLED and tree.calls[row] not in errands:
            newest[row] = max(newest[row], tree.calls[row])
        if (parent := tree.parents[row]) != ROOT:
            newest[parent] = max(newest[parent], newest[row])
    return newest


def _mark(
    tree: Tree, line_of: list[int], leaf: int, children: Mapping[int, list[int]], newest: list[int]
) -> tuple[str, int] | None:
    row, call = leaf, tree.calls[leaf]
    while (parent := tree.parents[row]) != ROOT and line_of[parent] == line_of[leaf]:
        others = [n for n in children[parent] if n != row and line_of[n] == line_of[leaf]]
        again = [tree.calls[n] for n in others if tree.kinds[n] is Kind.SAMPLED and newest[n] > call]
        if row == leaf and again:
            return SUPERSEDED, max(again)
        by = max((newest[n] for n in others), default=-1)
        if by > call:
            return DEAD_END, by
        row = parent
    return None
