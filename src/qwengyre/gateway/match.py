"""Where a request continues the tree: chained digests of its messages, one dictionary look-up a message.

The chain of a message is the digest of the chain before it and of the message; `rows` maps chains to rows. Two glue
steps have chains of their own: `close` (what ends a sampled turn) and `open` (what begins one). A sampled answer is
registered under the chain that its echo will have: that of its tool-call ids, or of its text.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np
import orjson

from qwengyre.errors import JournalError
from qwengyre.gateway import echo
from qwengyre.gateway.canon import Message, Request, ToolCall
from qwengyre.gateway.echo import Edits, plain, same_calls, same_text, values
from qwengyre.gateway.raw import RawPaths
from qwengyre.gateway.render import Rendered, Renderer
from qwengyre.trajectory.tree import ROOT, Tree
from qwengyre.types import Ids, Kind, ModelCall, Segment

_SIZE = 16


@dataclass(frozen=True)
class Prompt:
    """A call's conditioning: path to `parent` + `suffix`. `chains`: one a segment, then the one that an answer follows.

    `fresh`: messages that the suffix renders (the last ones of the request); what a journal keeps of the request.
    `match`: extend (the path went on), branch (it forked), root (nothing matched), rerender (the template could not
    append).
    """

    parent: int
    suffix: Ids
    segments: tuple[Segment, ...]
    chains: tuple[bytes, ...]
    end: bytes
    fresh: int
    match: str
    text: str = ""
    """What a prompt without messages says anew."""


@dataclass(frozen=True)
class Match:
    """The first `matched` messages end at `row`; `last` is the last sampled id there if the turn lacks its close.
    `whole`: the row opens the assistant's turn after the last message, so nothing is left to render."""

    row: int
    last: int | None
    matched: int
    chains: list[bytes]
    whole: bool = False


@dataclass(frozen=True)
class _Echo:
    """What we answered, by its first tool-call id."""

    raw: str
    text: str
    calls: tuple[ToolCall, ...]


class Index:
    """The chains of one execution's tree."""

    def __init__(self, tree: Tree, edits: Edits = echo.NONE) -> None:
        self.tree, self._edits = tree, edits
        self._raw = RawPaths(tree)
        self.rows: dict[bytes, int] = {}
        self._echoes: dict[str, _Echo] = {}
        self._last: dict[tuple[str, bytes], tuple[tuple[Message, ...], list[bytes]]] = {}

    def chains(self, thread: str, request: Request) -> list[bytes]:
        """One chain a message. What equals the thread's last request is compared, not digested again."""
        if request.raw is not None:
            return [_hash(b"raw", repr(request.raw).encode())]
        messages, root = request.messages, _hash(plain(request.tools))
        known, digests = self._last.get((thread, root), ((), []))
        same = _common(known, messages)
        chain = digests[same - 1] if same else root
        result = digests[:same]
        for message in messages[same:]:
            chain = _hash(chain, self._digest(message))
            result.append(chain)
        self._last[thread, root] = (messages, result)
        return result

    def match(self, request: Request, chains: list[bytes]) -> Match:
        """The deepest row that the request's messages reach."""
        if request.raw is not None:
            return Match(ROOT, None, 0, chains)
        matched = next((k for k in range(len(chains), 0, -1) if chains[k - 1] in self.rows), 0)
        if not matched:
            return Match(ROOT, None, 0, chains)
        chain = chains[matched - 1]
        row, last = self._closed(self.rows[chain], chain)
        opened = self.rows.get(_open(chain)) if matched == len(chains) and last is None else None
        return Match(row, last, matched, chains) if opened is None else Match(opened, None, matched, chains, True)

    def render(self, renderer: Renderer, request: Request, match: Match) -> Prompt:
        """Render what the match lacks; the tree is not touched, so this may run in a thread."""
        messages, matched = request.messages, match.matched
        if request.raw is not None:
            row, ids, text = self._raw.split(request.raw, renderer)
            segments = (Segment(Kind.CONTEXT, len(ids)),) if len(ids) else ()
            return Prompt(row, ids, segments, tuple(match.chains[: len(segments)]), match.chains[-1], 0, "", text)
        if match.whole:
            return Prompt(match.row, np.empty(0, np.int32), (), (), match.chains[-1], 0, "")
        if matched:
            fresh = self._restored(messages[matched:])
            rendered = renderer.extend(messages[matched - 1], match.last, fresh, request.tools)
            if rendered is not None:
                return _prompt(match.row, rendered, match.chains[matched - 1 :], len(fresh))
        rendered = renderer.start(self._restored(messages), request.tools)
        return _prompt(ROOT, rendered, [b"", *match.chains], len(messages))

    def prompt(self, rendered: Prompt, match: Match) -> Prompt:
        """The rendered prompt on the tree as it is now, with its label."""
        prompt = self.advance(rendered)
        if rendered.parent == ROOT:
            label = "rerender" if match.matched else "root"
        else:
            label = "branch" if self.tree.has_child(prompt.parent) else "extend"
        return replace(prompt, match=label)

    def advance(self, prompt: Prompt) -> Prompt:
        """Move the parent down over segments that the tree holds already, ids compared; conditioning is unchanged."""
        parent, start, skip = prompt.parent, 0, 0
        for segment, chain in zip(prompt.segments, prompt.chains, strict=True):
            row = self.rows.get(chain, ROOT)
            end = start + segment.length
            if row == ROOT or self.tree.parents[row] != parent or self.tree.kinds[row] is Kind.SAMPLED:
                break
            if not np.array_equal(self.tree.ids(row), prompt.suffix[start:end]):
                break
            parent, start, skip = row, end, skip + 1
        return replace(
            prompt,
            parent=parent,
            suffix=prompt.suffix[start:],
            segments=prompt.segments[skip:],
            chains=prompt.chains[skip:],
        )

    def answer_chain(self, prompt: Prompt, text: str, calls: Sequence[ToolCall]) -> bytes:
        """The chain that an echo of this answer will have."""
        return _hash(prompt.end, _echo_digest(calls[0].id) if calls else _text_digest(text))

    def add(self, call: ModelCall, rows: tuple[int, ...]) -> None:
        """Register a call's new rows; `call.request["chains"]` has one chain a row."""
        chains: list[bytes] = call.request["chains"]
        if len(chains) != len(rows):
            raise JournalError(f"call {call.call} has {len(chains)} chains for {len(rows)} rows")
        self.rows.update(zip(chains, rows, strict=True))
        if "raw" in call.request:
            self._raw.add(rows)
        if call.finish == "abort":
            del self.rows[chains[-1]]  # nobody was given this output, so nobody can echo it
        answer = call.response
        if answer["calls"]:
            calls = tuple(ToolCall(**c) for c in answer["calls"])
            self._echoes[calls[0].id] = _Echo(answer["raw"], answer["text"], calls)

    def _closed(self, row: int, chain: bytes) -> tuple[int, int | None]:
        """The row after which rendering goes on, and the last sampled id where the turn still lacks its close."""
        if self.tree.kinds[row] is not Kind.SAMPLED:
            return row, None
        closed = self.rows.get(_close(chain))
        if closed is not None:
            return closed, None
        ids = self.tree.ids(row)
        return row, int(ids[-1]) if len(ids) else -1

    def _digest(self, message: Message) -> bytes:
        if message.role != "assistant":
            return _hash(orjson.dumps([message.role, message.text, message.call_id, message.name]))
        if not message.calls:
            return _text_digest(message.text)
        if self._recognised(message) is not None:
            return _echo_digest(message.calls[0].id)
        return _hash(b"assistant", message.text.strip().encode(), values(message.calls))

    def _recognised(self, message: Message) -> _Echo | None:
        """Our own answer, whatever the harness did to its JSON; None where a value differs."""
        answer = self._echoes.get(message.calls[0].id) if message.calls else None
        if answer is None or not same_text(answer.text, message.text):
            return None
        return answer if same_calls(answer.calls, message.calls, self._edits) else None

    def _restored(self, messages: Iterable[Message]) -> list[Message]:
        """Our own answers as they were sampled, where they must be rendered anew (after a compaction, say)."""
        found = ((m, self._recognised(m)) for m in messages)
        return [m if e is None else Message("assistant", e.raw) for m, e in found]


def _prompt(parent: int, rendered: Rendered, chains: Sequence[bytes], fresh: int) -> Prompt:
    """`chains`: that of the message before the rendered ones, then theirs."""
    own = {"message": lambda c: c, "close": _close, "open": _open}
    keys = tuple(own[p.step](chains[p.messages]) for p in rendered.pieces)
    segments = tuple(Segment(p.kind, p.length) for p in rendered.pieces)
    return Prompt(parent, rendered.ids, segments, keys, chains[-1], fresh, "")


def fingerprint(request: Request) -> str:
    """The thread of a request: a digest of its system text and the names of its tools."""
    system = [next((m.text for m in request.messages if m.role == "system"), None)]
    names = sorted(str(t["function"]["name"]) for t in request.tools)
    return _hash(orjson.dumps([system, names])).hex()[:16]


def _common(known: Sequence[Message], messages: Sequence[Message]) -> int:
    """How many first messages are equal."""
    size = min(len(known), len(messages))
    if known[:size] == messages[:size]:
        return size
    return next(i for i in range(size) if known[i] != messages[i])


def _echo_digest(call_id: str) -> bytes:
    return _hash(b"echo", call_id.encode())


def _text_digest(text: str) -> bytes:
    return _hash(b"text", text.strip().encode())


def _close(chain: bytes) -> bytes:
    return _hash(chain, b"close")


def _open(chain: bytes) -> bytes:
    return _hash(chain, b"open")


def _hash(*parts: bytes) -> bytes:
    """Parts are framed by their lengths, so that no two lists of parts collide by concatenation."""
    digest = blake2b(digest_size=_SIZE)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()
