"""What a harness is to us: a command that runs in a box and only knows a URL."""

from dataclasses import dataclass, field
from typing import Protocol

from qwengyre.types import Query


@dataclass(frozen=True)
class Door:
    """What a harness is told: an OpenAI base URL (`.../v1`), its key, a model name, its work folder and its home."""

    base_url: str
    api_key: str
    model: str
    workdir: str
    home: str = "/home/agent"


@dataclass(frozen=True)
class Launch:
    """How to start it. `argv` is a list of words, never a shell line; `files` (name below the agent's home -> text)
    are written before it starts."""

    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict[str, str])
    files: dict[str, str] = field(default_factory=dict[str, str])


class Harness(Protocol):
    """A black box. It ends by itself, or its box is stopped; what it leaves in the workspace is what counts."""

    @property
    def mounts(self) -> dict[str, str]:
        """Host paths that its box shows read-only: path inside -> host path."""
        ...

    def launch(self, query: Query, door: Door) -> Launch:
        """The command of one execution. Pure: no I/O."""
        ...
