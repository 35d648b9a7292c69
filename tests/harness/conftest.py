"""The table at the end."""

from typing import Any

from table import ROWS, lines


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """A line for each whole session of a real harness."""
    if ROWS:
        terminalreporter.section("real harnesses")
        for line in lines(ROWS):
            terminalreporter.write_line(line)
