"""The table at the end: each test's rows travel with its report, from another process too."""

from collections.abc import Iterator
from typing import Any

import pytest
from table import ROWS, Row, lines


@pytest.fixture(autouse=True)
def _rows(request: pytest.FixtureRequest) -> Iterator[None]:
    ROWS.clear()
    yield
    request.node.user_properties.extend(("row", vars(row)) for row in ROWS)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """A line for each whole session of a real harness."""
    reports = [report for of_kind in terminalreporter.stats.values() for report in of_kind]
    told = [value for r in reports for name, value in getattr(r, "user_properties", ()) if name == "row"]
    unique = {(value["harness"], value["task"]): Row(**value) for value in told}
    if unique:
        terminalreporter.section("real harnesses")
        for line in lines(unique[key] for key in sorted(unique)):
            terminalreporter.write_line(line)
