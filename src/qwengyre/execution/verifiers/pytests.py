"""Run a task's trusted tests with pytest in the grading box, hardened, and score passed / fixed list of ids.

    session: inside.py, what is left of the list -> report -> a test that killed or hung the session has failed
    again, with the rest, in a fresh session, until every id is decided

Exit codes, printed text and files in the box are never read. Time that the tests use is the work's: when the
verifier's time is over the rest has not passed. Only what keeps pytest itself from running is a failed evaluation.
"""

import asyncio
import json
import os
import secrets
import shutil
import tempfile
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from qwengyre.errors import MachineError
from qwengyre.execution.freeze import remove
from qwengyre.execution.sandboxes.base import Box, Exit
from qwengyre.execution.verifiers import options
from qwengyre.execution.verifiers.base import LOGS, TESTS, Grade
from qwengyre.execution.verifiers.report import Report, read
from qwengyre.types import Query

MOUNT = "/run/qwengyre/pytest"
INSIDE = Path(__file__).with_name("inside.py")
_PACKAGES = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "py")
_SHORTEST_S = 1.0


class PytestVerifier:
    """pytest is ours, pure Python, copied once into `folder` and shown read-only: an image needs no pytest."""

    def __init__(self, folder: Path):
        """Touches nothing."""
        self._folder = folder / "pytest"

    def mounts(self, query: Query) -> dict[str, str]:
        """See `Verifier.mounts`. Raises MachineError when pytest is not installed."""
        place = options.of(query).place
        over = {f"{query.workdir}/{place}": query.tests} if place else {}
        return {MOUNT: str(_made(self._folder)), **over}

    async def grade(self, query: Query, box: Box, logs: Path) -> Grade:
        """See `Verifier.grade`."""
        wanted, loop = options.of(query), asyncio.get_running_loop()
        deadline = loop.time() + query.limits.verifier_s
        outcomes: dict[str, str] = {}
        sessions, tampered, stuck = 0, False, False
        while left := [test for test in wanted.ids if test not in outcomes]:
            seconds = deadline - loop.time()
            if sessions and (seconds < _SHORTEST_S or stuck or tampered):
                break
            end, report = await _session(query, box, logs, left, sessions, max(seconds, _SHORTEST_S))
            if trouble := _trouble(end):
                return Grade(None, trouble)
            settled = report.settled(left)
            if not settled and not await _works(query, box, logs):
                return Grade(None, f"pytest does not work in the box: {_last_line(logs, 'probe')}")
            stuck, tampered = end.over_disk or not settled, report.forged
            outcomes |= dict.fromkeys(settled, "failed") if tampered else settled
            sessions += 1
        counts = Counter(outcomes.get(test, "not run") for test in wanted.ids)
        text = "".join(f"{outcomes.get(test, 'not run')}\t{test}\n" for test in wanted.ids)
        await asyncio.to_thread((logs.parent / "tests.txt").write_text, text, "utf-8", "backslashreplace")
        detail: dict[str, Any] = {"passed": counts["passed"], "total": len(wanted.ids), "sessions": sessions}
        detail |= {word: n for word, n in counts.items() if word not in ("passed", "failed")}
        if tampered:  # nothing that was reported can be believed, earlier sessions' too
            return Grade(0.0, "a test that must fail passed", {**detail, "passed": 0, "tampered": 1})
        return Grade(counts["passed"] / len(wanted.ids), detail=detail)


async def _works(query: Query, box: Box, logs: Path) -> bool:
    """Whether pytest fails a test that must fail when nothing of the work or the tests is imported: else, a session
    without a report is the verifier's failure; then, it is the work's doing."""
    _, report = await _session(query, box, logs, [], "probe", query.limits.verifier_s)
    return report.controls == ["failed", "failed"]


async def _session(
    query: Query, box: Box, logs: Path, left: list[str], name: object, seconds: float
) -> tuple[Exit, Report]:
    """One run of pytest over the tests that are left."""
    wanted, key = options.of(query), secrets.token_bytes(32)
    plan = await asyncio.to_thread(_plan, query, box, logs, left, key)
    script = f"{box.path(MOUNT)}/inside.py"
    env = {"PYTHONPATH": ":".join(plan), **query.env, **query.verifier_env}  # for what the tests start; not for them
    argv = [wanted.python, "-I", "-S", script, f"{box.path(LOGS)}/plan.json"]
    log = _log(logs, name)
    end = await box.run(argv, env=env, timeout_s=seconds, log=log)
    return end, await asyncio.to_thread(read, log, key)


def _plan(query: Query, box: Box, logs: Path, left: list[str], key: bytes) -> list[str]:
    """Write the plan and the control of one session; returns the folders of the work that are imported from."""
    wanted = options.of(query)
    name = secrets.token_hex(4)
    remove(logs / "plan.json")
    control = logs / f"c{name}" / f"test_{name}.py"
    control.parent.mkdir()
    control.write_text("".join(f"def test_{secrets.token_hex(4)}():\n    assert 1 == 2\n\n\n" for _ in range(2)))
    workdir, laid = box.path(query.workdir), f"{query.workdir}/{wanted.place}"
    if wanted.place and box.path(laid) != laid:  # a sandbox that maps no paths: laid by copying
        shutil.copytree(query.tests, f"{workdir}/{wanted.place}", dirs_exist_ok=True)
    imports = [os.path.normpath(f"{workdir}/{folder}") for folder in wanted.imports]
    plan = {
        "key": key.hex(),
        "ids": left,
        "files": list(dict.fromkeys(test.split("::")[0] for test in left)),
        "root": workdir if wanted.place else box.path(TESTS),
        "tests": f"{workdir}/{wanted.place}" if wanted.place else box.path(TESTS),
        "imports": imports,
        "paths": list(wanted.paths),
        "plugins": list(wanted.plugins),
        "control": f"{box.path(LOGS)}/{control.parent.name}/{control.name}",
        "test_s": wanted.test_s,
    }
    (logs / "plan.json").write_text(json.dumps(plan))
    return imports


def _log(logs: Path, name: object) -> Path:
    return logs.parent / f"pytest-{name}.log"


def _last_line(logs: Path, name: object) -> str:
    lines = _log(logs, name).read_bytes()[-2000:].decode(errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else "no message"


def _trouble(end: Exit) -> str:
    """Why a session's end says nothing, "" when its report counts."""
    if end.failed:
        return end.failed
    return "the verifier was stopped" if end.stopped else ""


def _made(folder: Path) -> Path:
    """The folder that boxes show: inside.py, an empty configuration, and lib/. Complete or absent."""
    if folder.is_dir():
        return folder
    if find_spec("pytest") is None:
        raise MachineError("pytest is not installed; pip install 'qwengyre[run]'")
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=".pytest.", dir=folder.parent))
    for name in _PACKAGES:
        spec = find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            source = spec.submodule_search_locations[0]
            shutil.copytree(source, part / "lib" / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif spec is not None and spec.origin:
            shutil.copyfile(spec.origin, part / "lib" / f"{name}.py")
    shutil.copyfile(INSIDE, part / "inside.py")
    (part / "empty.ini").write_text("[pytest]\n")
    part.chmod(0o755)
    try:
        os.rename(part, folder)
    except OSError:  # another grading was first
        shutil.rmtree(part)
        if not folder.is_dir():
            raise
    return folder
