"""Score a report of tests in the common JSON format (CTRF) that an untrusted process wrote: passed / fixed list of ids.

What the report says in sum is not read, only its tests; a test that is missing has not passed, and of one that is there
twice the worse counts.
"""

from pathlib import Path
from typing import Any, cast

from qwengyre.execution.verifiers.files import NoReward, parsed, text

NAME = "ctrf.json"
_MOST_BYTES = 16 << 20


def read(folder: Path, ids: tuple[str, ...]) -> tuple[float, dict[str, Any]]:
    """(score in [0, 1], raw counts). An id is a test's name, or `file::name`, or `suite::name`. Raises NoReward."""
    content = text(folder, NAME, _MOST_BYTES)
    if content is None:
        raise NoReward(f"the verifier wrote no {NAME}")
    passed: dict[str, bool] = {}
    for test in _tests(parsed(content, NAME)):
        fine = test.get("status") == "passed"
        for name in _names(test):
            passed[name] = passed.get(name, True) and fine
    score = sum(passed.get(test, False) for test in ids)
    missing = sum(test not in passed for test in ids)
    return score / len(ids), {"passed": score, "total": len(ids), "missing": missing}


def _tests(report: Any) -> list[dict[str, Any]]:
    results = cast("dict[str, Any]", report).get("results") if isinstance(report, dict) else None
    tests = cast("dict[str, Any]", results).get("tests") if isinstance(results, dict) else None
    if not isinstance(tests, list):
        raise NoReward(f"{NAME} has no list results.tests")
    found = cast("list[Any]", tests)
    if not all(isinstance(test, dict) and isinstance(test.get("name"), str) for test in found):
        raise NoReward(f"{NAME}: a test has no name")
    return found


def _names(test: dict[str, Any]) -> set[str]:
    """What the id list may call it."""
    name: str = test["name"]
    before = [value for key in ("filePath", "suite") if isinstance(value := test.get(key), str)]
    return {name, *(f"{place}::{name}" for place in before)}
