"""Which class each leaf of a tree belongs to, and the evidence for it.

A leaf is `main` unless the system text that began its context line carries a marker of the table, which makes it
`auxiliary` (never trained). Evidence that names sub-agents and summaries (headers, the flow of data between context
lines) belongs before the table and needs the same two arguments.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from qwengyre.trajectory.tree import ROOT, Tree
from qwengyre.types import ModelCall

MAIN = "main"
AUXILIARY = "auxiliary"
PRIORITY = (MAIN, "main-summary", "sub-agent", "sub-agent-summary")
"""The trained classes, highest first. `auxiliary` is not among them."""

TABLE_VERSION = 1
MARKERS: tuple[tuple[str, str], ...] = (
    (r"\byou are a title generator\b", AUXILIARY),
    (r"\b(generate|write) a (short|concise|brief) title\b", AUXILIARY),
    (r"\bindicates a new conversation topic\b", AUXILIARY),
)
"""Pattern in a system text (lower case) -> class of every leaf of that context line."""


class LeafRole(NamedTuple):
    """A leaf's class and one line that says why."""

    role: str
    evidence: str


def roles(tree: Tree, calls: Sequence[ModelCall] = ()) -> dict[int, LeafRole]:
    """Leaf -> class and evidence, for every leaf of `tree`. `calls` are the recorded calls, for their request texts."""
    requests = {call.call: call.request for call in calls}
    found: dict[int, LeafRole] = {}
    by_first: dict[int, LeafRole] = {}
    first = _first_calls(tree)
    for leaf in tree.leaves():
        call = first[leaf]
        if call not in by_first:
            by_first[call] = _classify(call, requests.get(call, {}))
        found[leaf] = by_first[call]
    return found


def _first_calls(tree: Tree) -> list[int]:
    """For each row, the call that began its path at the root. Parents come before children, so one pass will do."""
    first: list[int] = []
    for row, parent in enumerate(tree.parents):
        first.append(tree.calls[row] if parent == ROOT else first[parent])
    return first


def _classify(call: int, request: Mapping[str, Any]) -> LeafRole:
    text = "\n".join(_system_texts(request)).lower()
    for pattern, role in MARKERS:
        if re.search(pattern, text):
            return LeafRole(role, f"system text of call {call} matches {pattern!r} (table {TABLE_VERSION})")
    return LeafRole(MAIN, f"no other evidence for the context line begun by call {call}")


def _system_texts(request: Mapping[str, Any]) -> Iterator[str]:
    """System texts of a chat, messages or responses body."""
    for key in ("system", "instructions"):
        yield from _texts(request.get(key))
    for message in _objects(request.get("messages")):
        if message.get("role") in ("system", "developer"):
            yield from _texts(message.get("content"))


def _texts(content: object) -> Iterator[str]:
    """A string, or the `text` of each part of a list."""
    if isinstance(content, str):
        yield content
    for part in _objects(content):
        if isinstance(text := part.get("text"), str):
            yield text


def _objects(value: object) -> list[dict[str, object]]:
    """The JSON objects of a JSON list; empty for anything else."""
    items = cast("list[object]", value) if isinstance(value, list) else []
    return [cast("dict[str, object]", item) for item in items if isinstance(item, dict)]
