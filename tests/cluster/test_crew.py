"""A call to a process that restarts is repeated; one that never comes back ends the run with a sentence."""

from typing import Any

import pytest

from qwengyre.cluster import crew as crews
from qwengyre.cluster.crew import Crew, Hands
from qwengyre.errors import RunError, StartingError


class Gone(Exception):
    """What a dead process's handle raises."""


class Method:
    """`method.remote()` fails with these errors first, then answers."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)
        self.seen: list[list[str]] = []
        self.crew: Crew | None = None

    async def remote(self, value: int) -> int:
        assert self.crew is not None
        self.seen.append(self.crew.waits)
        if self._errors:
            raise self._errors.pop(0)
        return value


@pytest.fixture
def crew(monkeypatch: pytest.MonkeyPatch) -> Crew:
    now = iter(range(10_000))
    monkeypatch.setattr(crews, "RETRY_S", 0.0)
    return Crew(Hands(None, None, None, (), (Gone,)), lambda: float(next(now)), lambda *_: None)


async def test_repeated_until_it_is_answered(crew: Crew) -> None:
    method = Method(Gone("died"), StartingError("not yet"))
    method.crew = crew
    assert await crew.call("the box", method, 7) == 7
    assert method.seen[0] == []
    assert "control waits for the box to come back" in method.seen[-1][0]
    assert crew.waits == []


async def test_the_end_of_patience(crew: Crew) -> None:
    method = Method(*(Gone("died") for _ in range(1000)))
    method.crew = crew
    with pytest.raises(RunError, match="the box did not come back in 60 s \\(died\\)"):
        await crew.call("the box", method, 7)


async def test_other_errors_are_the_callers(crew: Crew) -> None:
    method: Any = Method(ValueError("no"))
    method.crew = crew
    with pytest.raises(ValueError, match="no"):
        await crew.call("the box", method, 7)
