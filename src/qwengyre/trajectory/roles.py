"""Which class each leaf of a tree belongs to, and the evidence for it.

Two questions: whose context line is it (main, or a sub-agent's), and is the leaf's own answer an errand of that line
(a summary, or something auxiliary that never trains)? Each is answered by the best evidence there is:

    what requests say of themselves (recorded signals)  >  the flow of data between context lines (`flow`)
    >  a table of texts that give a request away (a harness's profile, as plain data)  >  the thread's fingerprint
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from qwengyre.trajectory.flow import Flow
from qwengyre.trajectory.marks import lines, marks
from qwengyre.trajectory.tree import Tree
from qwengyre.types import ModelCall

MAIN = "main"
SUB_AGENT = "sub-agent"
AUXILIARY = "auxiliary"
SUMMARY = "summary"
PRIORITY = (MAIN, f"{MAIN}-{SUMMARY}", SUB_AGENT, f"{SUB_AGENT}-{SUMMARY}")
"""The trained classes, highest first. `auxiliary` is not among them."""

TABLE_VERSION = 3


class Marker(NamedTuple):
    """A text that gives a request away: `pattern`, searched in lower case in the `system` or `first_user` text that
    began its context line, or in its own `last_user` text; or `no_tools`, where calls before had tools."""

    role: str
    where: str
    pattern: str = ""


@dataclass(frozen=True)
class Table:
    """What a harness gives away. `sub_agents`: signals that only a sub-agent's requests have. `kinds`: signal -> what
    its values mean (main, sub-agent, summary, auxiliary). The first marker that fits counts."""

    sub_agents: tuple[str, ...] = ()
    kinds: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    markers: tuple[Marker, ...] = ()

    @classmethod
    def of(cls, harness: Mapping[str, Any]) -> "Table":
        """What is known of all harnesses, and before it what a profile's `signals` and `markers` say of this one."""
        signals: dict[str, Any] = harness.get("signals") or {}
        meaning: dict[str, str] = signals.get("kinds", {})
        places: tuple[str, ...] = signals.get("kind", ())
        sub_agents: tuple[str, ...] = signals.get("sub_agent", ())
        markers = tuple(Marker(m["role"], m["where"], m.get("pattern", "")) for m in harness.get("markers") or ())
        return cls(
            tuple(dict.fromkeys((*sub_agents, *KNOWN.sub_agents))),
            {**KNOWN.kinds, **dict.fromkeys(places, meaning)},
            markers + KNOWN.markers,
        )


KNOWN = Table(
    sub_agents=("header:x-claude-code-agent-id", "header:x-openai-subagent", "header:x-parent-session-id"),
    kinds={
        "header:x-codex-turn-metadata#request_kind": {"compaction": SUMMARY, "memory": AUXILIARY, "prewarm": AUXILIARY},
        "header:x-claude-code-request-class": {
            "main": MAIN,
            "subagent": SUB_AGENT,
            "compaction": SUMMARY,
            "auxiliary": AUXILIARY,
        },
    },
    markers=(
        Marker(AUXILIARY, "system", r"\byou are a title generator\b"),
        Marker(AUXILIARY, "system", r"\b(generate|write) a (short|concise|brief) title\b"),
        Marker(AUXILIARY, "system", r"\bindicates a new conversation topic\b"),
        Marker(SUMMARY, "system", r"\bcontext summarization\b"),
        Marker(SUMMARY, "last_user", r"\brespond with text only\b"),
    ),
)
"""What no harness says by accident."""


class LeafRole(NamedTuple):
    """A leaf's class and one line that says why. `mark`: superseded or dead end, by call `by` (-1: none)."""

    role: str
    evidence: str
    mark: str = ""
    by: int = -1


class _Found(NamedTuple):
    role: str
    evidence: str


def roles(tree: Tree, calls: Sequence[ModelCall] = (), table: Table = KNOWN) -> dict[int, LeafRole]:
    """Leaf -> class and evidence, for every leaf of `tree`. `calls` are the recorded calls, in the journal's order."""
    line_of = lines(tree)
    told = _Evidence(tree, line_of, calls, table)
    leaves = {leaf: (line_of[leaf], tree.calls[leaf]) for leaf in tree.leaves()}
    errands = {call for began, call in leaves.values() if told.errand(began, call)}
    marked = marks(tree, line_of, errands)
    return {
        leaf: LeafRole(*told.role(began, call), *marked.get(leaf, ("", -1))) for leaf, (began, call) in leaves.items()
    }


class _Evidence:
    """Of one execution. A context line is named by the call that began it."""

    def __init__(self, tree: Tree, line_of: list[int], calls: Sequence[ModelCall], table: Table) -> None:
        self._flow, self._table = Flow(calls), table
        self._line = dict(zip(tree.calls, line_of, strict=True))
        self._threads = dict(zip(tree.calls, tree.threads, strict=True))
        self._began = list(dict.fromkeys(line_of))
        self._tools = _tools(tree, self._flow)
        self._summaries = {s: n for n in self._began if (s := self._flow.summarised(n)) is not None}
        self._goes_on = {self._line.get(source) for n in self._began if (source := self._flow.carried(n)) is not None}
        self._whose: dict[int, _Found] = {}
        self._by_thread: dict[str, str] = {}
        self._matched: dict[tuple[str, str], bool] = {}
        for began in self._began:
            self._whose[began] = self._decide(began)
            if self._whose[began].role != AUXILIARY:
                self._by_thread.setdefault(self._threads[began], self._whose[began].role)

    def role(self, began: int, call: int) -> _Found:
        """Of a leaf that is an answer of `call`."""
        line, errand = self._whose[began], self.errand(began, call)
        if errand is None or line.role == AUXILIARY:
            return line
        role = AUXILIARY if errand.role == AUXILIARY else f"{line.role}-{SUMMARY}"
        return _Found(role, f"{errand.evidence}; {line.evidence}")

    def errand(self, began: int, call: int) -> _Found | None:
        """Whether the answer of `call` is a summary or auxiliary, and why."""
        if (said := self._kind(call)) is not None:
            return said if said.role in (SUMMARY, AUXILIARY) else None
        if call in self._summaries:
            root = self._summaries[call]
            return _Found(SUMMARY, f"the answer of call {call} appears again in the new context of call {root}")
        found = self._marker(began, call)
        return found if found and found.role in (SUMMARY, AUXILIARY) else None

    def _decide(self, began: int) -> _Found:
        """Whose line it is."""
        found = self._explicit(began) or self._by_flow(began)
        if found is None and (marked := self._marker(began, began)) and marked.role in (MAIN, SUB_AGENT):
            found = marked
        if (errand := self.errand(began, began)) and errand.role == AUXILIARY:
            return errand
        return found or self._by_fingerprint(began, errand)

    def _explicit(self, call: int) -> _Found | None:
        said = self._kind(call)
        if said is not None and said.role in (MAIN, SUB_AGENT):
            return said
        signals = self._signals(call)
        place = next((p for p in self._table.sub_agents if p in signals), None)
        return _Found(SUB_AGENT, f"call {call} has {place}") if place else None

    def _kind(self, call: int) -> _Found | None:
        """What a request calls itself."""
        signals = self._signals(call)
        for place, values in self._table.kinds.items():
            if (role := values.get(signals.get(place, ""))) is not None:
                return _Found(role, f"call {call} has {place}={signals[place]}")
        return None

    def _by_flow(self, began: int) -> _Found | None:
        flow = self._flow
        told, said = flow.told(began), f"the first message of call {began} is an argument of a tool call of call"
        if told is not None and told.still:
            return _Found(SUB_AGENT, f"{said} {told.giver}")
        for source, why in ((flow.carried(began), "the history"), (flow.summarised(began), "a summary")):
            line = self._whose.get(self._line.get(source, -1)) if source is not None else None
            if line is not None:
                role = MAIN if line.role == AUXILIARY else line.role
                return _Found(role, f"call {began} begins with {why} of call {source}")
        return _Found(SUB_AGENT, f"{said} {told.giver}, whose result was known by then") if told is not None else None

    def _by_fingerprint(self, began: int, errand: _Found | None) -> _Found:
        thread = self._threads[began]
        if (known := self._by_thread.get(thread)) is not None:
            return _Found(known, f"no other evidence for call {began}, and its thread {thread} is of {known}")
        lacks_tools = self._tools.get(began) == [] and any(self._tools.values()) and began not in self._goes_on
        if not self._by_thread and not lacks_tools:
            return _Found(MAIN, f"the first context line, begun by call {began}")
        if errand is not None:
            line = next((self._line[n] for n in self._flow.before(began) if self._line.get(n) in self._whose), began)
            role = self._whose[line].role if line in self._whose else MAIN
            return _Found(
                role if role != AUXILIARY else MAIN, f"of the line of call {line}, which was active before it"
            )
        if lacks_tools:
            return _Found(AUXILIARY, f"call {began} has no tools, others have, and its answer goes nowhere")
        return _Found(SUB_AGENT, f"call {began} begins a thread of its own, {thread}")

    def _marker(self, began: int, call: int) -> _Found | None:
        texts = {
            "system": "\n".join(s.text for s in self._flow.said(began) if s.role == "system"),
            "first_user": next((s.text for s in self._flow.said(began) if s.role == "user"), ""),
            "last_user": next((s.text for s in reversed(self._flow.said(call)) if s.role == "user"), ""),
        }
        for role, where, pattern in self._table.markers:
            if where == "no_tools":
                if self._tools.get(began) == [] and any(self._tools.get(n) for n in self._began if n < began):
                    return _Found(role, f"call {began} has no tools, and calls before it had (table {TABLE_VERSION})")
            elif texts[where] and self._matches(pattern, texts[where]):
                of, text = (call, "last user") if where == "last_user" else (began, where.replace("_", " "))
                return _Found(role, f"{text} text of call {of} matches {pattern!r} (table {TABLE_VERSION})")
        return None

    def _matches(self, pattern: str, text: str) -> bool:
        """Remembered: sub-agents of a kind have one long system text."""
        if (pattern, text) not in self._matched:
            self._matched[pattern, text] = re.search(pattern, text.lower()) is not None
        return self._matched[pattern, text]

    def _signals(self, call: int) -> Mapping[str, str]:
        return self._flow.requests.get(call, {}).get("signals") or {}


def _tools(tree: Tree, flow: Flow) -> dict[int, Any]:
    """Call -> the tools recorded where its path began at the root; None where nothing was recorded."""
    first: list[int] = []
    for row, parent in enumerate(tree.parents):
        first.append(tree.calls[row] if parent < 0 else first[parent])
    return {call: flow.requests.get(began, {}).get("tools") for call, began in zip(tree.calls, first, strict=True)}
