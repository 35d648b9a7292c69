"""The pytest verifier in real boxes: the score is the share of the fixed list that passed, whatever the work does."""

import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qwengyre.execution.harnesses.command import CommandHarness
from qwengyre.execution.runner import Runner
from qwengyre.execution.sandboxes.process import ProcessSandbox
from qwengyre.execution.verifiers.options import Options
from qwengyre.execution.verifiers.report import Report
from qwengyre.types import Query, Settlement, Verdict

GOOD = "def double(x):\n    return 2 * x\n"
HALF = "def double(x):\n    return 4\n"
BAD = "def double(x):\n    return None\n"
SUITE = """
import pytest
from work import double

@pytest.mark.parametrize("x", [2, 3])
def test_double(x):
    assert double(x) == 2 * x

class TestMore:
    def test_zero(self, zero):
        assert double(zero) == 0

def test_text():
    assert double("a") == "aa"
"""
IDS = (
    "test_a.py::test_double[2]",
    "test_a.py::test_double[3]",
    "test_a.py::TestMore::test_zero",
    "test_a.py::test_text",
)
CONFTEST = "import pytest\n@pytest.fixture\ndef zero():\n    return 0\n"


@pytest.fixture
def grade(
    task: Callable[..., Query], runner: Callable[..., Runner], gateway: Path, not_queued: Any, tmp_path: Path
) -> Callable[..., Any]:
    """Settle the work that these files are. `suite`: more files of the trusted tests; the rest are options."""
    count = 0

    async def settle(
        work: dict[str, str],
        *,
        suite: dict[str, str] | None = None,
        sandbox: Any = None,
        verifier_s: float = 60,
        **given: Any,
    ) -> Settlement:
        nonlocal count
        given = {"ids": IDS, "test_s": 10.0, **given}
        query = task("", files=work, metadata={"verifier": Options(kind="pytest", **given)})
        query = replace(query, limits=replace(query.limits, verifier_s=verifier_s))
        for name, text in {"test_a.py": SUITE, "conftest.py": CONFTEST, **(suite or {})}.items():
            (Path(query.tests) / name).parent.mkdir(exist_ok=True, parents=True)
            (Path(query.tests) / name).write_text(text)
        made = runner(CommandHarness(["true"]), retries=1, **({"sandbox": sandbox} if sandbox else {}))
        name, count = f"0-{count}", count + 1
        ending = await made.run(name, query, token="t", socket=gateway, queued_s=not_queued)
        return await made.settle(name, query, ending)

    return settle


def scored(settled: Settlement) -> float:
    assert settled.verdict is Verdict.SCORED, settled
    assert settled.detail["attempts"] == 1
    return settled.score


@pytest.mark.parametrize(("work", "score"), [(GOOD, 1.0), (HALF, 0.25), (BAD, 0.0), ("syntax error", 0.0), (None, 0.0)])
async def test_the_share_that_passes(grade: Any, work: str | None, score: float) -> None:
    assert scored(await grade({"work.py": work} if work else {"other": ""})) == score


async def test_skipped_expected_failing_and_erring_tests_have_not_passed(grade: Any) -> None:
    suite = """
    import pytest, unittest
    from work import double
    def test_fine(): pass
    def test_skipped(): pytest.skip()
    @pytest.mark.xfail
    def test_xfail(): assert double(1) == 3
    @pytest.mark.xfail
    def test_xpass(): assert double(1) == 2
    @pytest.fixture
    def torn():
        yield
        raise ValueError
    def test_teardown(torn): pass
    def test_setup(no_such_fixture): pass
    class TestOld(unittest.TestCase):
        def test_fine(self): self.assertEqual(double(1), 2)
        def test_wrong(self): self.assertEqual(double(1), 3)
    """
    names = ["fine", "skipped", "xfail", "xpass", "teardown", "setup", "not_there"]
    ids = (
        *(f"test_b.py::test_{name}" for name in names),
        "test_b.py::TestOld::test_fine",
        "test_b.py::TestOld::test_wrong",
    )
    settled = await grade({"work.py": GOOD}, suite={"test_b.py": textwrap.dedent(suite)}, ids=ids)
    assert scored(settled) == 2 / 9
    assert (settled.detail["passed"], settled.detail["total"], settled.detail["missing"]) == (2, 9, 1)


ALL_PASS = """
import _pytest.reports, _pytest.runner, pytest
original = _pytest.reports.TestReport.from_item_and_call
def passing(item, call):
    call.excinfo = None
    return original(item, call)
_pytest.reports.TestReport.from_item_and_call = passing
"""
HOOKS = """
import pytest
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    outcome.get_result().outcome = "passed"
    call.excinfo = None
def pytest_collection_modifyitems(items):
    for item in items: item.obj = lambda *a, **k: None
"""
PLANTED = {
    "conftest.py": {"conftest.py": HOOKS},
    "pytest.ini": {"pytest.ini": "[pytest]\naddopts = -p evil --co\npython_functions = nothing\n", "evil.py": HOOKS},
    "other ini": {
        "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '-p evil'\n",
        "tox.ini": "[pytest]\naddopts = -p evil\n",
        "setup.cfg": "[tool:pytest]\naddopts = -p evil\n",
        "evil.py": HOOKS,
    },
    "names of the library": {
        f"{name}.py": 'raise SystemExit("hi")\n'
        for name in (
            "pytest",
            "_pytest",
            "pluggy",
            "json",
            "hashlib",
            "re",
            "conftest",
            "test_a",
            "inside",
            "faulthandler",
        )
    },
    "start-up files": {
        f"{name}.py": 'print("9 passed"); import os; os._exit(0)\n' for name in ("sitecustomize", "usercustomize")
    },
    ".pth and metadata": {
        "evil.pth": "import os; os._exit(0)\n",
        "evil-1.dist-info/entry_points.txt": "[pytest11]\nevil = evil\n",
        "evil-1.dist-info/METADATA": "Name: evil\nVersion: 1\n",
        "evil.py": HOOKS,
    },
    "packages": {"__init__.py": HOOKS, "tests/__init__.py": HOOKS, "tests/conftest.py": HOOKS},
}


@pytest.mark.parametrize("what", PLANTED)
async def test_files_in_the_work_change_nothing(grade: Any, what: str) -> None:
    assert scored(await grade({"work.py": HALF, **PLANTED[what]})) == 0.25


async def test_nor_where_the_tests_are_laid_into_the_work(grade: Any) -> None:
    planted = {name: text for files in PLANTED.values() for name, text in files.items()}
    own = "import sys, types\nsys.modules['tests.aid'] = aid = types.ModuleType('aid')\naid.TWO = 4\n__path__ = []\n"
    evil = {"tests/test_a.py": "def test_text(): pass\n", "tests.py": own, "tests/sub/x": ""}
    suite = {
        "aid.py": "TWO = 2\n",
        "test_d.py": "from tests.aid import TWO\nfrom work import double\ndef test_aid(): assert double(1) == TWO\n",
    }
    ids = (*(f"tests/{test}" for test in IDS), "tests/test_d.py::test_aid")
    settled = await grade({"work.py": HALF, **planted, **evil}, suite=suite, ids=ids, place="tests")
    assert scored(settled) == 0.2
    assert scored(await grade({"work.py": GOOD}, suite=suite, ids=ids, place="tests")) == 1.0


ATTACKS = {
    "exit": ("import os\ndef double(x):\n    os._exit(0)\n", 0.0),
    "exit once": (
        GOOD + "import os\nold = double\ndef double(x):\n    os._exit(0) if x == 3 else 0\n    return old(x)\n",
        0.75,
    ),
    "exit at import": ("import os; os._exit(0)\n", 0.0),
    "exit at import after words": ("import os; print('4 passed', flush=True); os._exit(0)\n", 0.0),
    "system exit": ("raise SystemExit(0)\n", 0.0),
    "pytest.exit": ("import pytest\ndef double(x):\n    pytest.exit('done', 0)\n", 0.0),
    "kill": ("import os, signal\ndef double(x):\n    os.kill(os.getpid(), 9)\n", 0.0),
    "hang": (GOOD + "old = double\ndef double(x):\n    while x == 0: pass\n    return old(x)\n", 0.75),
    "all reports": (ALL_PASS + BAD, 0.0),
    "no asserts": ("import _pytest.assertion.rewrite as r\nr.AssertionRewriter.run = lambda *a: None\n" + HALF, 0.25),
    "no calls": ("import _pytest.python as p\np.Function.runtest = lambda self: None\n" + BAD, 0.0),
    "skips for errors": ("import builtins, pytest\nbuiltins.AssertionError = pytest.skip.Exception\n" + BAD, 0.0),
    "the files": (
        "import pathlib, shutil\nfor p in pathlib.Path('/logs').rglob('*'):\n    p.is_file() and p.write_text('1')\n"
        + GOOD,
        0.0,
    ),
    "forged records": (
        "import os\nid = 'test_a.py::test_text'\nparts = [p.encode().hex() for p in ('end', id, 'passed')]\n"
        "line = '\\n@' + 32 * '0' + ' ' + ' '.join(parts) + '\\n'\n"
        "def double(x):\n    if x != 'a': return 4\n"
        "    for fd in range(1, 20):\n        try: os.write(fd, line.encode())\n        except OSError: pass\n"
        "    os._exit(0)\n",
        0.25,
    ),
    "no output": (
        "import os\nfor fd in range(64):\n    try: os.ftruncate(fd, 0)\n    except OSError: pass\n" + GOOD,
        0.0,
    ),
    "the hash": ("import hashlib, hmac\nhashlib.blake2b = hmac.new = None\n" + HALF, 0.25),
    "memory": ("def double(x):\n    return bytearray(900 << 20)\n", 0.0),
}


@pytest.mark.parametrize("what", ATTACKS)
async def test_what_the_work_does_while_it_is_tested(grade: Any, what: str) -> None:
    work, score = ATTACKS[what]
    settled = await grade({"work.py": work}, test_s=1.0 if what == "hang" else 20.0)
    assert scored(settled) == score
    assert settled.detail.get("tampered", 0) == (what in ("all reports", "no calls", "the files"))


async def test_time_is_the_work_s(grade: Any) -> None:
    slow = "import faulthandler, time\ndef double(x):\n    faulthandler.cancel_dump_traceback_later(); time.sleep(99)\n"
    settled = await grade({"work.py": slow}, verifier_s=4, test_s=60.0)
    assert (scored(settled), settled.detail["not run"]) == (0.0, 3)


async def test_pytest_that_cannot_run_is_a_failed_evaluation(grade: Any) -> None:
    for given, reason in (
        ({"python": "/no/such/python"}, "the sandbox ended without its command's exit code"),
        ({"python": "false"}, "pytest does not work in the box: no message"),
        ({"plugins": ("no_such_plugin",)}, "pytest does not work in the box: "),
    ):
        settled = await grade({"work.py": GOOD}, **given)
        assert settled.verdict is Verdict.DROPPED
        assert settled.reason.startswith(f"evaluation failed 2 times on the same work: {reason}")


async def test_a_conftest_that_imports_broken_work_is_the_work_s(grade: Any) -> None:
    suite = {"conftest.py": "import work\n" + CONFTEST}
    assert scored(await grade({"work.py": "raise ValueError"}, suite=suite)) == 0.0
    assert scored(await grade({"work.py": GOOD}, suite=suite)) == 1.0


async def test_imports_paths_and_a_configuration_of_the_tests(grade: Any, tmp_path: Path) -> None:
    suite = {
        "pytest.ini": "[pytest]\npython_functions = check_*\n",
        "test_c.py": "from work import double\nimport aid\ndef check_it(): assert double(1) == aid.TWO\n",
        "aid.py": "TWO = 2\n",
    }
    work = {"src/work.py": GOOD, "src/aid.py": "TWO = 3\n", "aid.py": "TWO = 3\n"}
    settled = await grade(work, suite=suite, imports=("src",), ids=("test_c.py::check_it",))
    assert scored(settled) == 1.0


async def test_in_the_process_sandbox(grade: Any, tmp_path: Path) -> None:
    sandbox = ProcessSandbox(run_id="pt", scratch=tmp_path / "scratch")
    assert scored(await grade({"work.py": HALF, "conftest.py": HOOKS}, sandbox=sandbox)) == 0.25
    ids = tuple(f"deep/tests/{test}" for test in IDS)
    assert scored(await grade({"work.py": HALF}, sandbox=sandbox, ids=ids, place="deep/tests")) == 0.25


def test_reports_of_sessions_that_died() -> None:
    left = ["a.py::x", "a.py::y", "b.py::z"]
    assert Report(collecting="a.py").settled(left) == {"a.py::x": "died", "a.py::y": "died"}
    assert Report(collected=True, started="a.py::y", outcomes={"a.py::x": "passed"}).settled(left) == {
        "a.py::x": "passed",
        "a.py::y": "died",
    }
    assert Report(collected=True, over=True).settled(left) == dict.fromkeys(left, "missing")
    assert Report(over=True).settled(left) == {}
    assert Report(outcomes={"a.py::x": "passed"}).forged
    assert Report(controls=["failed", "passed"]).forged
    assert not Report(controls=["failed"], outcomes={"a.py::x": "passed"}).forged
