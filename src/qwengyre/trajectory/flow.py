"""What recorded calls say of themselves, and how data flows between the context lines of a harness.

It needs no help from the harness: a sub-agent is told what an argument of a tool call said; a new context that goes on
with an old one holds answers of that one, as they were given or as a summary.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from qwengyre.types import ModelCall

Request = Mapping[str, Any]
SHORTEST = 12
"""Characters of an argument, or of a summary's line, below which finding it again says nothing."""
LOOKED_BACK = 32
"""Calls before a new context whose answers are looked for in it as a summary."""


class Said(NamedTuple):
    """A message. `calls`: ids of the tool calls that it makes; `answers`: that of the one whose result it is."""

    role: str
    text: str
    calls: tuple[str, ...] = ()
    answers: str = ""


class Told(NamedTuple):
    """Call `giver` made a tool call of which an argument is a first message; `still`: its result was not known yet."""

    giver: int
    still: bool


class _Argument(NamedTuple):
    text: str
    giver: int
    tool_call: str


class _Read(NamedTuple):
    """A message and its lines."""

    said: Said
    lines: set[str]


class Flow:
    """Of one execution's calls, in the order of their ends (that of the journal)."""

    def __init__(self, calls: Sequence[ModelCall]) -> None:
        self.requests: dict[int, Request] = {call.call: call.request or {} for call in calls}
        self._place = {call.call: n for n, call in enumerate(calls)}
        self._calls = calls
        self._said: dict[int, list[Said]] = {number: list(messages(r)) for number, r in self.requests.items()}
        self._arguments = [argument for call in calls for argument in _arguments(call)]
        self._makers: dict[str, int] = {}
        """Id of a tool call -> the call that made it."""
        self._results: dict[str, int] = {}
        """Id of a tool call -> the first call that knew its result."""
        self._summarised: dict[int, int | None] = {}
        self._texts: dict[str, list[int]] = {}
        """Text of an answer -> the calls that gave it."""
        for call in calls:
            self._note(call)

    def said(self, call: int) -> list[Said]:
        """The messages that are new in the request of `call`; none where the call was not recorded."""
        return self._said.get(call, [])

    def told(self, call: int) -> Told | None:
        """Who gave `call` its first message, as an argument of a tool call; best one whose result was still awaited.

        The message is the argument, or ends with it on lines of its own: what quotes an argument was not told by it.
        """
        texts = [f"\n{said.text.strip()}" for said in self.said(call) if said.role == "user"]
        found: Told | None = None
        for argument in reversed(self._arguments) if texts else ():
            if self._place[argument.giver] < self._place[call] and _ends(texts, argument.text):
                still = self._results.get(argument.tool_call, call) >= call
                if still:
                    return Told(argument.giver, still)
                found = found or Told(argument.giver, still)
        return found

    def carried(self, call: int) -> int | None:
        """The newest earlier call whose answer stands in the history that `call` begins with, as it was given."""
        found = -1
        before = ""
        for said in self.said(call):
            if said.role == "assistant":
                found = max(
                    found, *(self._makers.get(made, -1) for made in said.calls), self._given(said, before, call)
                )
            before = said.text
        return found if 0 <= found != call else None

    def summarised(self, call: int) -> int | None:
        """The earlier call whose answer `call` begins with as a summary: without what it answered."""
        if call not in self._summarised:
            self._summarised[call] = self._find_summary(call) if self.said(call) else None
        return self._summarised[call]

    def before(self, call: int) -> Iterator[int]:
        """Calls that ended before `call`, the newest first."""
        return (earlier.call for earlier in reversed(self._calls[: self._place.get(call, 0)]))

    def _find_summary(self, call: int) -> int | None:
        place, carried = self._place[call], self.carried(call)
        first = 0 if carried is None else self._place[carried] + 1  # what it begins with was summarised after that
        root = [_read(said) for said in self.said(call)]
        for at in range(place - 1, max(place - LOOKED_BACK, first) - 1, -1):
            if self._is_summary(self._calls[at], root) and not self._reported(at, place):
                return self._calls[at].call
        return None

    def _reported(self, at: int, place: int) -> bool:
        """Whether the answer of call `at` came back as a tool's result before: a sub-agent's report, which transcripts
        quote without what it answered."""
        text = str((self._calls[at].response or {}).get("text") or "").strip()
        between = (said for call in self._calls[at + 1 : place] for said in self.said(call.call) if said.answers)
        return any(_flows(text, _read(said)) for said in between)

    def _note(self, call: ModelCall) -> None:
        response = call.response or {}
        for tool_call in objects(response.get("calls")):
            self._makers.setdefault(str(tool_call.get("id")), call.call)
        if text := str(response.get("text") or "").strip():
            self._texts.setdefault(text, []).append(call.call)
        for said in self._said[call.call]:
            if said.answers:
                self._results[said.answers] = min(self._results.get(said.answers, call.call), call.call)

    def _given(self, said: Said, before: str, call: int) -> int:
        """The newest call that gave this text in answer to the message `before`; -1: none."""
        given = self._texts.get(said.text.strip(), [])
        same = [n for n in given if self._place[n] < self._place[call] and self._answered(n) == before]
        return max(same, default=-1)

    def _answered(self, call: int) -> str:
        """The last message before an answer."""
        return self.said(call)[-1].text if self.said(call) else ""

    def _is_summary(self, earlier: ModelCall, root: Sequence[_Read]) -> bool:
        text, asked = str((earlier.response or {}).get("text") or "").strip(), self._answered(earlier.call)
        if len(text) < SHORTEST or not asked or objects((earlier.response or {}).get("calls")):
            return False
        before = ""
        for read in root:
            said = read.said
            if said.role == "assistant":
                holds = said.text.strip() == text and before != asked
            else:
                holds = _flows(text, read) and asked not in said.text  # a transcript holds what was asked, too
            if holds:
                return True
            before = said.text
        return False


def _read(said: Said) -> _Read:
    return _Read(said, {line.strip() for line in said.text.splitlines()})


def _ends(texts: Sequence[str], argument: str) -> bool:
    return any(text.endswith(f"\n{argument}") for text in texts)


def _flows(text: str, into: _Read) -> bool:
    """At least half of `text`, by its lines: harnesses cut the thoughts and tags around a summary away, and may put
    words before its first line and after its last one."""
    lines = [line.strip() for line in text.splitlines() if len(line.strip()) >= SHORTEST]
    within = {line for line in lines if line in into.lines}
    edges = {line for line in (*lines[:1], *lines[-1:]) if line not in within}
    total = sum(map(len, lines))
    if not lines or 2 * sum(len(line) for line in lines if line in within | edges) < total:
        return False  # without a search
    within |= {line for line in edges if line in into.said.text}
    return 2 * sum(len(line) for line in lines if line in within) >= total


def messages(request: Request) -> Iterator[Said]:
    """The messages of a recorded request, and of a chat, messages or responses body."""
    for key in ("system", "instructions"):
        for text in _texts(request.get(key)):
            yield Said("system", text)
    for message in objects(request.get("messages")):
        role = str(message.get("role", ""))
        made = tuple(str(made.get("id")) for made in objects(message.get("calls")))
        text = "\n".join(_texts(message.get("text", message.get("content"))))
        yield Said("system" if role == "developer" else role, text, made, str(message.get("call_id") or ""))


def _arguments(call: ModelCall) -> Iterator[_Argument]:
    for tool_call in objects((call.response or {}).get("calls")):
        for text in _strings(tool_call.get("arguments")):
            if len(text) >= SHORTEST:
                yield _Argument(text, call.call, str(tool_call.get("id")))


def _strings(arguments: object) -> Iterator[str]:
    """The texts among a tool call's arguments (JSON text)."""
    try:
        values = json.loads(arguments) if isinstance(arguments, str) else None
    except ValueError:
        return
    if isinstance(values, dict):
        yield from (value.strip() for value in cast("dict[str, object]", values).values() if isinstance(value, str))


def _texts(content: object) -> Iterator[str]:
    """A string, or the `text` of each part of a list."""
    if isinstance(content, str):
        yield content
    for part in objects(content):
        if isinstance(text := part.get("text"), str):
            yield text


def objects(value: object) -> list[dict[str, object]]:
    """The JSON objects of a JSON list; empty for anything else."""
    items = cast("list[object]", value) if isinstance(value, list) else []
    return [cast("dict[str, object]", item) for item in items if isinstance(item, dict)]
