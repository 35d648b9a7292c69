"""Which class each leaf of a tree belongs to, and the evidence for it.

In this order: what requests say of themselves (recorded signals), the flow of data between context lines (a sub-agent
is told what a tool call's argument said), a small table of texts that give a request away, else `main`. Two questions:
whose context line is it (main, a sub-agent's, or auxiliary), and is the leaf's own answer a summary?
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from qwengyre.trajectory.tree import ROOT, Tree
from qwengyre.types import ModelCall

MAIN = "main"
SUB_AGENT = "sub-agent"
AUXILIARY = "auxiliary"
SUMMARY = "summary"
PRIORITY = (MAIN, f"{MAIN}-{SUMMARY}", SUB_AGENT, f"{SUB_AGENT}-{SUMMARY}")
"""The trained classes, highest first. `auxiliary` is not among them."""

TABLE_VERSION = 2
Request = Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """What harnesses give away. `sub_agents`: signals that only a sub-agent's requests have. `kinds`: signal -> its
    values that mean a summary. Patterns are searched in lower case: `auxiliary` in the system text that began a line,
    `summaries` there too, `asked` in the last user text of the answer's own request."""

    sub_agents: tuple[str, ...] = ()
    kinds: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    auxiliary: tuple[str, ...] = ()
    summaries: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()


KNOWN = Table(
    sub_agents=("header:x-claude-code-agent-id", "header:x-openai-subagent", "header:x-parent-session-id"),
    kinds={"header:x-codex-turn-metadata#request_kind": ("compaction",)},
    auxiliary=(
        r"\byou are a title generator\b",
        r"\b(generate|write) a (short|concise|brief) title\b",
        r"\bindicates a new conversation topic\b",
        r"\bmanaged memory|durable memory\b",
    ),
    summaries=(r"\bcontext summarization\b",),
    asked=(r"\brespond with text only\b",),
)
_SHORTEST = 12
"""An argument that is shorter says nothing when a first message ends with it."""


class LeafRole(NamedTuple):
    """A leaf's class and one line that says why."""

    role: str
    evidence: str


def roles(tree: Tree, calls: Sequence[ModelCall] = (), table: Table = KNOWN) -> dict[int, LeafRole]:
    """Leaf -> class and evidence, for every leaf of `tree`. `calls` are the recorded calls, for their request texts."""
    known = {call.call: call for call in calls}
    first = _first_calls(tree)
    lines: dict[int, LeafRole] = {}
    found: dict[int, LeafRole] = {}
    for leaf in tree.leaves():
        began = first[leaf]
        if began not in lines:
            lines[began] = _line(began, known, table)
        found[leaf] = _leaf(tree.calls[leaf], began, lines[began], known, table)
    return found


def _first_calls(tree: Tree) -> list[int]:
    """For each row, the call that began its path at the root. Parents come before children, so one pass will do."""
    first: list[int] = []
    for row, parent in enumerate(tree.parents):
        first.append(tree.calls[row] if parent == ROOT else first[parent])
    return first


def _line(call: int, known: Mapping[int, ModelCall], table: Table) -> LeafRole:
    """Whose context line `call` began."""
    request = _request(known, call)
    system = "\n".join(_system_texts(request)).lower()
    if (pattern := _matching(table.auxiliary, system)) is not None:
        return LeafRole(AUXILIARY, f"system text of call {call} matches {pattern!r} (table {TABLE_VERSION})")
    if (place := next((p for p in table.sub_agents if p in _signals(request)), None)) is not None:
        return LeafRole(SUB_AGENT, f"call {call} has {place}")
    if (giver := _told_by(call, known)) is not None:
        return LeafRole(SUB_AGENT, f"the first message of call {call} is an argument of a tool call of call {giver}")
    return LeafRole(MAIN, f"no other evidence for the context line begun by call {call}")


def _leaf(call: int, began: int, line: LeafRole, known: Mapping[int, ModelCall], table: Table) -> LeafRole:
    """The line's class, or that of its summaries, if the answer of `call` is one."""
    if line.role == AUXILIARY:
        return line
    why = _summary(call, began, known, table)
    return LeafRole(f"{line.role}-{SUMMARY}", f"{why}; {line.evidence}") if why else line


def _summary(call: int, began: int, known: Mapping[int, ModelCall], table: Table) -> str:
    """Why the answer of `call` is a summary, or ""."""
    request, signals = _request(known, call), _signals(_request(known, call))
    for place, values in table.kinds.items():
        if signals.get(place) in values:
            return f"call {call} has {place}={signals[place]}"
    if (pattern := _matching(table.asked, _last_user_text(request).lower())) is not None:
        return f"the last user text of call {call} matches {pattern!r} (table {TABLE_VERSION})"
    start = _request(known, began)
    system = "\n".join(_system_texts(start)).lower()
    if (pattern := _matching(table.summaries, system)) is not None:
        return f"system text of call {began} matches {pattern!r} (table {TABLE_VERSION})"
    if start.get("tools") == [] and any(other < began and _request(known, other).get("tools") for other in known):
        return f"call {began} has no tools, and calls before it had"
    return ""


def _told_by(call: int, known: Mapping[int, ModelCall]) -> int | None:
    """The earlier call, one of whose tool calls has an argument that ends a first message of `call`.

    (A summary may quote arguments too; it does not end with one on lines of its own.)
    """
    texts = [f"\n{text.strip()}" for text in _user_texts(_request(known, call))]
    for giver in sorted(other for other in known if other < call) if texts else ():
        for tool_call in _objects((known[giver].response or {}).get("calls")):
            for argument in _strings(tool_call.get("arguments")):
                if len(argument) >= _SHORTEST and any(text.endswith(f"\n{argument}") for text in texts):
                    return giver
    return None


def _strings(arguments: object) -> Iterator[str]:
    """The texts among a tool call's arguments (JSON text)."""
    try:
        values = json.loads(arguments) if isinstance(arguments, str) else None
    except ValueError:
        return
    if isinstance(values, dict):
        yield from (value.strip() for value in cast("dict[str, object]", values).values() if isinstance(value, str))


def _request(known: Mapping[int, ModelCall], call: int) -> Request:
    return (known[call].request or {}) if call in known else {}


def _signals(request: Request) -> Mapping[str, str]:
    return request.get("signals") or {}


def _matching(patterns: Sequence[str], text: str) -> str | None:
    return next((pattern for pattern in patterns if re.search(pattern, text)), None) if text else None


def _system_texts(request: Request) -> Iterator[str]:
    """System texts of a recorded request, and of a chat, messages or responses body."""
    for key in ("system", "instructions"):
        yield from _texts(request.get(key))
    for message in _objects(request.get("messages")):
        if message.get("role") in ("system", "developer"):
            yield from _texts(_content(message))


def _user_texts(request: Request) -> Iterator[str]:
    for message in _objects(request.get("messages")):
        if message.get("role") == "user":
            yield from _texts(_content(message))


def _last_user_text(request: Request) -> str:
    return next(reversed(list(_user_texts(request))), "")


def _content(message: Mapping[str, object]) -> object:
    """A recorded message holds its text under `text`, one of a wire body under `content`."""
    return message.get("text", message.get("content"))


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
