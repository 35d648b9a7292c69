"""Runs inside a grading box as `python -I -S inside.py PLAN`: one pytest session that hears only its plan. Stdlib and
the pytest beside it (lib/) only; Python 3.10 or later.

-I and -S keep out PYTHON* variables, user sites, sitecustomize, usercustomize and .pth files; the standard library and
pytest come before the work on the path, so that nothing in it can take their names. No plug-in, configuration or
conftest.py is loaded but those of the trusted tests.

What happens is written to the standard output that this process began with, a line a record, each with a keyed hash
over its number and text. The key is read and its file deleted before anything of the work is imported.
"""

import contextlib
import faulthandler
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Say = Callable[..., None]


def main(path: str) -> None:
    """Run the session of the plan at `path`, and exit without waiting for what the work may have left running."""
    with open(path) as file:
        plan: dict[str, Any] = json.load(file)
    os.unlink(path)
    lib = str(Path(__file__).parent / "lib")
    sys.dont_write_bytecode = True
    sys.path[:] = [*sys.path, lib, plan["tests"], *plan["paths"]]
    for name in [name for name in os.environ if name.startswith(("PYTEST_", "PY_COLORS"))]:
        del os.environ[name]
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    say = voice(os.dup(1), bytes.fromhex(plan.pop("key")))
    import pytest

    say("begin", pytest.__version__)
    pytest.main(words(plan), plugins=[session(plan, say, watchdog(plan["test_s"]))])
    say("over")
    with contextlib.suppress(Exception):  # the work's own, maybe
        sys.stdout.flush()
    os._exit(0)


def voice(out: int, key: bytes) -> Say:
    """Writes records. It holds the functions that it needs: replacing them elsewhere changes nothing here."""
    keyed, write, number = hashlib.blake2b(key=key, digest_size=16), os.write, 0

    def say(*parts: str) -> None:
        nonlocal number
        text = b" ".join(part.encode("utf-8", "surrogatepass").hex().encode() for part in parts)
        record = keyed.copy()
        record.update(b"%d " % number + text)
        number += 1
        write(out, b"\n@" + record.hexdigest().encode() + b" " + text + b"\n")

    return say


def watchdog(seconds: float) -> Callable[[bool], None]:
    """Ends this process after `seconds`, from a thread that needs no interpreter. True (re)starts it, False stops."""
    err, start, stop = os.dup(2), faulthandler.dump_traceback_later, faulthandler.cancel_dump_traceback_later
    return lambda on: start(seconds, exit=True, file=err) if on else stop()


def words(plan: dict[str, Any]) -> list[str]:
    """pytest's command line."""
    flags = ["-q", "--tb=short", "--color=no", "--import-mode=importlib", "--continue-on-collection-errors"]
    flags += ["-p", "no:cacheprovider", "-p", "no:faulthandler", *(w for name in plan["plugins"] for w in ("-p", name))]
    own = os.path.join(plan["tests"], "pytest.ini")
    ini = own if os.path.isfile(own) else str(Path(__file__).parent / "empty.ini")
    flags += ["-c", ini, "--rootdir", plan["root"], "--confcutdir", plan["tests"]]
    return [*flags, "--", *(os.path.join(plan["root"], name) for name in plan["files"]), plan["control"]]


def session(plan: dict[str, Any], say: Say, watch: Callable[[bool], None]) -> object:
    """The one plug-in. Controls are tests that must fail; they run first and last, among the work's own."""
    import pytest

    wanted = set(plan["ids"])
    control = Path(plan["control"])
    phases: dict[str, bool] = {}

    class Session:
        @pytest.hookimpl(tryfirst=True)
        def pytest_load_initial_conftests(self) -> None:
            """After the plug-ins: from here on the work can be imported, before what the tests depend on."""
            at = sys.path.index(plan["paths"][0]) if plan["paths"] else len(sys.path)
            sys.path[at:at] = plan["imports"]
            watch(True)

        @pytest.hookimpl(tryfirst=True)
        def pytest_collectstart(self, collector: pytest.Collector) -> None:
            if isinstance(collector, pytest.Module) and collector.path != control:
                say("collect", collector.nodeid)
            watch(True)

        @pytest.hookimpl(tryfirst=True)
        def pytest_pycollect_makeitem(self, collector: pytest.Collector, name: str) -> pytest.Item | None:
            """Controls are there whatever names the tests' own configuration gives to tests."""
            ours = collector.path == control and name.startswith("test_")
            return pytest.Function.from_parent(collector, name=name) if ours else None

        @pytest.hookimpl(trylast=True)
        def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
            controls = [item for item in items if item.path == control]
            kept = [item for item in items if item.nodeid in wanted and item.path != control]
            items[:] = [*controls[:1], *kept, *controls[1:]] if kept or not wanted else []

        @pytest.hookimpl(tryfirst=True)
        def pytest_collection_finish(self) -> None:
            watch(False)
            say("collected")

        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
            ours = item.path == control
            if not ours:
                say("start", item.nodeid)
            phases.clear()
            watch(True)
            try:
                return (yield)
            finally:
                watch(False)
                passed = phases == {"setup": True, "call": True, "teardown": True}
                word = "passed" if passed else "failed"
                say("control", word) if ours else say("end", item.nodeid, word)

        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_runtest_makereport(self, call: "pytest.CallInfo[None]") -> Iterator[Any]:
            report = yield
            plain = report.outcome == "passed" and not hasattr(report, "wasxfail")
            phases[call.when] = plain and call.excinfo is None
            return report

    return Session()


if __name__ == "__main__":
    main(sys.argv[1])
