"""Prompts without messages (completions): a prompt goes on where the text or the ids of an earlier path end.

The client holds the whole text, the end of a turn included if it wants one; stored ids stay the truth of a path.
"""

from typing import TYPE_CHECKING

import numpy as np

from qwengyre.trajectory.tree import ROOT, Tree
from qwengyre.types import Ids

if TYPE_CHECKING:
    from qwengyre.gateway.render import Renderer

_RECENT = 8
"""Paths that a prompt may go on: of concurrent talks, and of their last calls."""


class RawPaths:
    """The last raw paths of an execution."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._rows: list[int] = []
        self._texts: dict[int, str] = {}

    def add(self, rows: tuple[int, ...]) -> None:
        """New rows of a raw call, in order."""
        self._rows = (self._rows + list(rows))[-_RECENT:]
        self._texts = {row: text for row, text in self._texts.items() if row in self._rows}

    def split(self, raw: str | tuple[int, ...], renderer: "Renderer") -> tuple[int, Ids, str]:
        """The row that the prompt goes on from (ROOT: none), the ids behind it, and their text."""
        return self._split_text(raw, renderer) if isinstance(raw, str) else self._split_ids(raw, renderer)

    def _split_text(self, raw: str, renderer: "Renderer") -> tuple[int, Ids, str]:
        best, length = ROOT, 0
        for row in list(self._rows):
            text = self._texts.get(row)
            if text is None:
                text = self._texts[row] = renderer.text(self._tree.path_ids(row))
            if len(text) > length and raw.startswith(text):
                best, length = row, len(text)
        return best, renderer.encode(raw[length:]), raw[length:]

    def _split_ids(self, raw: tuple[int, ...], renderer: "Renderer") -> tuple[int, Ids, str]:
        ids = np.array(raw, np.int32)
        best, length = ROOT, 0
        for row in list(self._rows):
            size = self._tree.lengths[row]
            if length < size <= len(ids) and np.array_equal(self._tree.path_ids(row), ids[:size]):
                best, length = row, size
        return best, ids[length:], renderer.text(ids[length:])
