"""Which thread of a harness asks: by the headers that it sends, else by what its request looks like.

The table is data: `DEFAULT` holds the headers that known harnesses send, which are unmistakable; a harness profile may
bring others.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from qwengyre.gateway.canon import Message

_LONGEST = 4096


@dataclass(frozen=True)
class Signals:
    """Header names in lower case. `thread`: the first one present names the thread; `kept`: recorded with each call,
    as evidence for roles. `volatile`: patterns (multi-line) of text that a harness changes from call to call without
    meaning, cut out of system messages before anything is compared or rendered."""

    thread: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    volatile: tuple[str, ...] = ()

    def read(self, headers: Mapping[str, str]) -> tuple[dict[str, str], str]:
        """What the headers of a request say, and the thread that they name ("" if none)."""
        said = {name: headers[name][:_LONGEST] for name in (*self.thread, *self.kept) if headers.get(name)}
        return said, next((said[name] for name in self.thread if name in said), "")

    def stable(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """The messages, system texts without their volatile parts."""
        if not self.volatile:
            return messages
        return tuple(replace(m, text=self._stable(m.text)) if m.role == "system" else m for m in messages)

    def _stable(self, text: str) -> str:
        for pattern in self.volatile:
            text = re.sub(pattern, "", text, flags=re.MULTILINE)
        return text


DEFAULT = Signals(
    thread=("x-claude-code-agent-id", "thread-id", "x-session-id"),
    kept=(
        "x-claude-code-session-id",
        "x-claude-code-parent-agent-id",
        "x-claude-code-request-class",
        "x-claude-code-agent-type",
        "x-claude-code-compaction",
        "x-openai-subagent",
        "x-codex-parent-thread-id",
        "x-codex-turn-metadata",
        "x-codex-window-id",
        "x-parent-session-id",
    ),
)
