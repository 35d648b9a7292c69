"""The verifier of a task by the kind it asks for, or one of the user's own for all tasks."""

from pathlib import Path

from qwengyre.execution.verifiers import options
from qwengyre.execution.verifiers.base import Verifier
from qwengyre.execution.verifiers.harbor import ScriptVerifier
from qwengyre.execution.verifiers.pytests import PytestVerifier
from qwengyre.plugin import named
from qwengyre.types import Query


def check(kind: str) -> None:
    """Whether `Verifiers` can be made of it. Raises ConfigError."""
    if kind != "task":
        named("scoring.verifier", kind, {"task": ""})


class Verifiers:
    """Chooses for each query. `folder`: where the pytest that boxes show is kept."""

    def __init__(self, folder: Path, kind: str = "task"):
        """`kind`: `task` (what each says) or `package.module:Class`, made without arguments. Raises ConfigError."""
        self._own: Verifier | None = None if kind == "task" else named("scoring.verifier", kind, {"task": ""})()
        self._script, self._pytest = ScriptVerifier(), PytestVerifier(folder)

    def of(self, query: Query) -> Verifier:
        """The verifier of a query."""
        if self._own is not None:
            return self._own
        return self._pytest if options.of(query).kind == "pytest" else self._script
