"""The trajectory tree of one execution: three append-only token buffers and rows of integers.

A row stores only the tokens that it adds; a path is walked, not stored, so a history is never copied and 1M tokens
stay about 10 MB. Row r holds tokens [end[r-1], end[r]) of the buffers. Kind says context, glue or sampled; the
training mask is derived from it. The tree grows by whole model calls and is the one mutable class of the deciding code.

Example: two calls, the second continuing the first
    row 0 CONTEXT  parent -1   system + user message
    row 1 GLUE     parent 0    what opens the assistant's turn
    row 2 SAMPLED  parent 1    the first answer
    row 3 CONTEXT  parent 2    tool result ...
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qwengyre.types import Floats, Ids, Kind, ModelCall

ROOT = -1
"""The parent of rows that start a context from nothing."""


class _Column:
    """A growing numpy array: appends are amortised O(1) a value, the view is never copied. What it begins with may be
    read-only: the first append goes to an array of its own."""

    def __init__(self, dtype: type[np.generic], begin: NDArray[Any] | None = None) -> None:
        self._data: NDArray[Any] = np.empty(1024, dtype) if begin is None else begin
        self.size = 0 if begin is None else len(begin)

    def extend(self, values: NDArray[Any]) -> None:
        need = self.size + len(values)
        if need > len(self._data) or not self._data.flags.writeable:
            grown = np.empty(max(need, 2 * len(self._data)), self._data.dtype)
            grown[: self.size] = self._data[: self.size]
            self._data = grown
        self._data[self.size : need] = values
        self.size = need

    @property
    def view(self) -> NDArray[Any]:
        return self._data[: self.size]


class Tree:
    """Append-only while recording; `add` returns the new row. Rows of undelivered calls are `withheld`."""

    def __init__(self, ids: Ids | None = None, logprobs: Floats | None = None) -> None:
        """Empty; or with the tokens of a tree that is being read back (`columns`)."""
        self._ids = _Column(np.int32, ids)
        self._logprobs = _Column(np.float32, logprobs)
        self.parents: list[int] = []
        self.ends: list[int] = []
        self.lengths: list[int] = []
        """Tokens of the path from the root to the end of each row."""
        self.kinds: list[Kind] = []
        self.calls: list[int] = []
        """The call that added each row; a sampled row is the output of that call."""
        self.threads: list[str] = []
        self.withheld: set[int] = set()
        """Sampled rows that must not train: undelivered output, or sampled under a constraint."""
        self.versions: dict[int, tuple[tuple[int, int], ...]] = {}
        """Sampled row -> runs (end offset in the row, weight version), in order."""
        self.temperatures: dict[int, float] = {}
        self._has_child: set[int] = set()

    def __len__(self) -> int:
        return len(self.parents)

    @property
    def num_tokens(self) -> int:
        """Distinct tokens held, over all branches."""
        return self._ids.size

    @property
    def num_sampled(self) -> int:
        """Tokens that the model made, trained or not."""
        return sum(len(self.ids(row)) for row, kind in enumerate(self.kinds) if kind is Kind.SAMPLED)

    @property
    def all_ids(self) -> Ids:
        """The tokens of all rows, in the order of the rows (a view)."""
        return self._ids.view

    @property
    def all_logprobs(self) -> Floats:
        """Theirs, zeros unless SAMPLED (a view)."""
        return self._logprobs.view

    def restore(self, parents: list[int], ends: list[int], lengths: list[int], kinds: list[Kind]) -> None:
        """The rows of the tokens that it was made with."""
        self.parents, self.ends, self.lengths, self.kinds = parents, ends, lengths, kinds
        self._has_child = set(parents)

    def add(self, parent: int, kind: Kind, ids: Ids, *, call: int, thread: str, logprobs: Floats | None = None) -> int:
        """Append one row under `parent` and return it. `logprobs` (float32, same length) only for SAMPLED rows."""
        assert ROOT <= parent < len(self), (parent, len(self))
        assert (logprobs is not None) == (kind is Kind.SAMPLED)
        self._ids.extend(ids)
        self._logprobs.extend(np.zeros(len(ids), np.float32) if logprobs is None else logprobs)
        self.parents.append(parent)
        self.ends.append(self._ids.size)
        self.lengths.append(len(ids) + (self.lengths[parent] if parent != ROOT else 0))
        self.kinds.append(kind)
        self.calls.append(call)
        self.threads.append(thread)
        self._has_child.add(parent)
        return len(self) - 1

    def add_call(self, call: ModelCall) -> tuple[int, ...]:
        """Append a finished call below its parent row: a row for each segment of the suffix, then the sampled row.

        Returns the new rows, the sampled one last. Raises AssertionError when the segments do not cover the suffix.
        """
        assert sum(s.length for s in call.segments) == len(call.suffix), "segments must cover the suffix"
        assert len(call.output) == len(call.logprobs), "one log-prob a sampled token"
        rows: list[int] = []
        parent, start = call.parent, 0
        for kind, length in call.segments:
            ids = call.suffix[start : start + length]
            parent = self.add(parent, kind, ids, call=call.call, thread=call.thread)
            start += length
            rows.append(parent)
        sampled = self.add(
            parent, Kind.SAMPLED, call.output, call=call.call, thread=call.thread, logprobs=call.logprobs
        )
        self.versions[sampled] = tuple((s.end, s.version) for s in call.stretches)
        self.temperatures[sampled] = call.temperature
        if not call.trainable:
            self.withheld.add(sampled)
        return (*rows, sampled)

    def span(self, row: int) -> slice:
        """Where the row's own tokens lie in the buffers."""
        return slice(self.ends[row - 1] if row else 0, self.ends[row])

    def ids(self, row: int) -> Ids:
        """The row's own tokens (a view)."""
        return self._ids.view[self.span(row)]

    def logprobs(self, row: int) -> Floats:
        """The row's own recorded log-probs (a view); zeros unless SAMPLED."""
        return self._logprobs.view[self.span(row)]

    def path(self, row: int) -> list[int]:
        """Rows from the root to `row`, both included; empty for ROOT."""
        rows: list[int] = []
        while row != ROOT:
            rows.append(row)
            row = self.parents[row]
        return rows[::-1]

    def path_ids(self, row: int) -> Ids:
        """All tokens from the root to the end of `row`, copied once."""
        rows = self.path(row)
        return np.concatenate([self.ids(r) for r in rows]) if rows else np.empty(0, np.int32)

    def path_logprobs(self, row: int) -> Floats:
        """Recorded log-probs along the path, zeros where nothing was sampled."""
        rows = self.path(row)
        return np.concatenate([self.logprobs(r) for r in rows]) if rows else np.empty(0, np.float32)

    def has_child(self, row: int) -> bool:
        """Whether any row hangs below `row`."""
        return row in self._has_child

    def leaves(self) -> Iterator[int]:
        """Rows without children, in order of creation."""
        return (r for r in range(len(self)) if r not in self._has_child)
