"""`[metadata.verifier]` of a task.toml: how its work is graded, checked before anything runs."""

from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

from qwengyre.errors import MachineError, TaskError, nearest
from qwengyre.execution.tasksets.schema import Check, number, one_of, text
from qwengyre.execution.verifiers.options import KINDS, Options


def _list(value: Any) -> str:
    """A list of strings."""
    fine = isinstance(value, list) and all(isinstance(v, str) and v and "\0" not in v for v in value)
    return "" if fine else "expected a list of strings"


def _inner(value: Any) -> str:
    """A relative path without `..`."""
    fine = isinstance(value, str) and "\0" not in value and not PurePosixPath(value).is_absolute()
    return "" if fine and ".." not in PurePosixPath(value).parts else "expected a relative path without '..'"


def _inners(value: Any) -> str:
    return _list(value) or next(filter(None, map(_inner, value)), "")


_CHECKS: dict[str, Check] = {
    "kind": one_of(*KINDS),
    "ids": _inner,
    "test_timeout_sec": number,
    "python": text,
    "imports": _inners,
    "paths": _list,
    "plugins": _list,
    "place": _inner,
}
_FIELDS = {"test_timeout_sec": "test_s"}


def grading(values: dict[str, Any], folder: Path) -> Options:
    """The options of a task folder. Raises TaskError."""
    file, metadata = folder / "task.toml", values.get("metadata", {})
    given: Any = metadata.get("verifier", {}) if isinstance(metadata, dict) else {}
    if not isinstance(given, dict):
        raise TaskError(f"{file}: metadata.verifier={given!r}: expected a table [metadata.verifier]")
    for key, value in given.items():
        if key not in _CHECKS:
            raise TaskError(f"{file}: unknown key 'metadata.verifier.{key}': {nearest(key, list(_CHECKS))}")
        if wrong := _CHECKS[key](value):
            raise TaskError(f"{file}: metadata.verifier.{key}={value!r}: {wrong}")
    kind = given.get("kind", "reward")
    allowed = {"reward": ["kind"], "ctrf": ["kind", "ids"]}.get(kind, list(_CHECKS))
    for key in given:
        if key not in allowed:
            raise TaskError(f"{file}: metadata.verifier.{key} means nothing for kind='{kind}': remove it")
    plain = {_FIELDS.get(k, k): tuple(v) if isinstance(v, list) else v for k, v in given.items() if k != "ids"}
    if kind == "reward":
        return Options()
    place = str(PurePosixPath(given.get("place", ""))).removeprefix(".")
    options = Options(**{**plain, "place": place, "ids": _ids(folder / "tests" / given.get("ids", "ids.txt"))})
    if kind == "pytest":
        if find_spec("pytest") is None:
            raise MachineError(f"{file}: metadata.verifier.kind='pytest' needs it: pip install 'qwengyre[run]'")
        _check_files(options, folder / "tests")
    return options


def _ids(file: Path) -> tuple[str, ...]:
    """A test id a line."""
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{file}: expected the list of test ids, one a line: {error}") from None
    ids = tuple(line for line in lines if line and not line.startswith("# "))
    if not ids or len(set(ids)) != len(ids):
        raise TaskError(f"{file}: expected test ids, one a line, each once")
    return ids


def _check_files(options: Options, tests: Path) -> None:
    before = f"{options.place}/" if options.place else ""
    for file in dict.fromkeys(test.split("::")[0] for test in options.ids):
        path = PurePosixPath(file)
        if not file.startswith(before) or ".." in path.parts or not (tests / file.removeprefix(before)).is_file():
            raise TaskError(f"{tests}: a test id names '{file}': expected a file of this folder, after '{before}'")
