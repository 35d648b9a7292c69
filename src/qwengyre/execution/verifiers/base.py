"""What grading is: a copy of frozen work in, a score or the reason why there is none out."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from qwengyre.execution.sandboxes.base import Box
from qwengyre.types import Query

TESTS = "/tests"
LOGS = "/logs"


@dataclass(frozen=True)
class Grade:
    """`score` in [0, 1], or None: the evaluation failed for `reason`, which is never a zero. `detail`: raw counts."""

    score: float | None
    reason: str = ""
    detail: dict[str, Any] = field(default_factory=dict[str, Any])


class Verifier(Protocol):
    """Grades in an open box that has no network: the work in `query.workdir`, tests in /tests, read-only."""

    def mounts(self, query: Query) -> dict[str, str]:
        """Host paths that its box shows read-only beside /tests: path inside -> host path. Blocks; run in a thread."""
        ...

    async def grade(self, query: Query, box: Box, logs: Path) -> Grade:
        """Run it once. `logs` is the host folder that is writable at /logs inside; its `verifier/` is empty.

        What it raises is a failed evaluation as well.
        """
        ...
