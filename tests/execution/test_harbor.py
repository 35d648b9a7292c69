"""The reader of the Harbor task format: limits, older spellings, and one clear line for whatever is broken."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from qwengyre.errors import TaskError
from qwengyre.execution.tasksets.harbor import HarborTasks
from qwengyre.execution.verifiers.options import Options
from qwengyre.types import Limits

CAPS = Limits(agent_s=100, overall_s=200, verifier_s=700, memory_mb=1000, pids=64, disk_mb=500)
FULL = """
schema_version = "1.4"
artifacts = ["/app/out"]
[task]
name = "ours/full"
version = "2"
description = "d"
keywords = ["k"]
[metadata]
anything = {goes = [1, 2]}
remove_before_grading = ["conftest.py"]
category = "files"
[agent]
timeout_sec = 30.5
network_mode = "no-network"
[verifier]
timeout_sec = 20
environment_mode = "separate"
env = {SEED = "${SEED:-7}"}
[environment]
docker_image = "python:3.12"
build_timeout_sec = 10
os = "linux"
cpus = 2
memory_mb = 300
storage_mb = 100000
gpus = 0
gpu_types = []
mcp_servers = []
env = {A = "x"}
workdir = "/testbed"
[solution]
env = {}
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """A task folder: `toml` and further files; a value of None leaves one out."""

    def make(toml: str | None = "", name: str = "one", **files: str | None) -> Path:
        found = {"task.toml": toml, "instruction.md": "Do it.\n", "tests/test.sh": "true\n", **files}
        for path, text in found.items():
            if text is not None:
                (tmp_path / "tasks" / name / path).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / "tasks" / name / path).write_text(text)
        return tmp_path / "tasks"

    return make


def test_a_full_task(write: Callable[..., Path]) -> None:
    path = write(FULL, **{"environment/data/x": "1", "solution/solve.sh": "true"})
    (query,) = HarborTasks(path, limits=CAPS)
    assert (query.name, query.instruction, query.image, query.workdir) == (
        "ours/full",
        "Do it.",
        "python:3.12",
        "/testbed",
    )
    assert query.environment == str(path / "one" / "environment")
    assert query.tests == str(path / "one" / "tests")
    assert query.limits == Limits(30.5, 200, 20, 300, 64, 500)
    assert (query.env, query.verifier_env) == ({"A": "x"}, {"SEED": "7"})
    assert query.metadata["remove_before_grading"] == ("conftest.py",)
    assert query.metadata["kind"] == "files"


def test_older_spellings_and_what_is_left_out(write: Callable[..., Path]) -> None:
    path = write('version = "1.0"\n[environment]\nmemory = "2G"\nstorage = "100M"\nallow_internet = true\n')
    (query,) = HarborTasks(path, limits=CAPS)
    assert query.limits == Limits(100, 200, 600, 1000, 64, 100)
    assert (query.name, query.image, query.workdir, query.environment) == ("one", "", "/app", "")


def test_a_folder_of_tasks_is_sorted_and_counted(write: Callable[..., Path]) -> None:
    for name in ("b", "a", "c"):
        path = write(name=name)
    (path / "README").write_text("not a task")
    (path / "notes").mkdir()
    tasks = HarborTasks(path, limits=CAPS, count=2)
    assert [query.name for query in tasks] == ["a", "b"]
    assert len(tasks) == 2
    with pytest.raises(IndexError):
        tasks[2]
    assert HarborTasks(path / "c", limits=CAPS)[0].name == "c"


def test_an_image_with_a_dockerfile_holds_its_own_files(write: Callable[..., Path]) -> None:
    path = write('[environment]\ndocker_image = "x:1"', **{"environment/Dockerfile": "FROM x", "environment/data": "1"})
    assert HarborTasks(path, limits=CAPS)[0].environment == ""


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("[task\n", "task.toml is not a TOML file"),
        ("\xff", "task.toml is not a TOML file"),
        ('schema = "1"', r"unknown key 'schema': did you mean 'schema_version'\?"),
        ("[agent]\ntimeout = 3", r"unknown key 'agent.timeout': did you mean 'timeout_sec'\?"),
        ("[environment]\nmemory_gb = 3", r"unknown key 'environment.memory_gb': did you mean 'memory_mb'\?"),
        ("[zzz]\nx = 1", "unknown key 'zzz': known: "),
        ("agent = 3", "agent=3: expected a table"),
        ("[agent]\ntimeout_sec = 0", "agent.timeout_sec=0: expected a number above 0"),
        ("[agent]\ntimeout_sec = true", "agent.timeout_sec=True: expected a number above 0"),
        ("[agent]\ntimeout_sec = nan", "agent.timeout_sec=nan: expected a number above 0"),
        ('[agent]\nuser = "root"', "agent.user='root': only 'agent'"),
        ('[verifier]\ntimeout_sec = "1"', "verifier.timeout_sec='1': expected a number above 0"),
        ("[verifier]\nenv = {A = 1}", "verifier.env=.*expected a table of strings"),
        ('[verifier]\nenv = {A = "${HOME}"}', r"'\$\{HOME\}' asks for a variable of this machine"),
        ('[verifier.environment]\ndocker_image = "x"', "a verifier environment of its own: not supported yet"),
        ('[[verifier.collect]]\ncommand = "x"', "collect hooks: not supported yet"),
        ('[[steps]]\nname = "x"', "multi-step tasks: not supported yet"),
        ("[environment]\ngpus = 1", "environment.gpus=1: GPUs: not supported yet"),
        (
            '[environment]\nnetwork_mode = "allowlist"',
            "environment.network_mode='allowlist': only 'no-network' or 'public'",
        ),
        ('[environment]\nallowed_hosts = ["x"]', "a network allowlist: not supported yet"),
        ('[[environment.mcp_servers]]\nname = "x"', "MCP servers: not supported yet"),
        ('[environment.healthcheck]\ncommand = "x"', "health checks: not supported yet"),
        ('[environment]\nmemory = "2 GB"', "expected a size such as '2G'"),
        ('[environment.env]\nA = "x\\u0000--bind"', "expected a table of strings without NUL"),
        ('[environment]\nworkdir = "/a\\u0000b"', "expected an absolute path"),
        ('[environment]\nworkdir = "app"', "environment.workdir='app': expected an absolute path"),
        ('[environment]\nworkdir = "/"', "environment.workdir='/': expected an absolute path"),
        ('[environment]\nworkdir = "/usr/x"', "outside the system's own"),
        ('[environment]\nworkdir = "/tests"', "outside the system's own"),
        ('[environment]\nworkdir = "/app/../usr"', "environment.workdir='/app/../usr'"),
        ('[metadata]\nremove_before_grading = ["a/b"]', "expected a list of file names"),
    ],
)
def test_a_broken_toml_is_one_line(write: Callable[..., Path], toml: str, message: str) -> None:
    path = write("")
    (path / "one" / "task.toml").write_bytes(toml.encode("latin-1"))
    with pytest.raises(TaskError, match=message) as caught:
        HarborTasks(path, limits=CAPS)
    assert str(path / "one") in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"task.toml": None}, "no task.toml"),
        ({"instruction.md": None}, "no instruction.md"),
        ({"instruction.md": " \n"}, "is empty"),
        ({"tests/test.sh": None, "tests/other": "x"}, "no tests/test.sh"),
        ({"environment/docker-compose.yaml": "x"}, "compose files: not supported yet"),
        ({"environment/Dockerfile": "FROM x"}, "images are not built here: set environment.docker_image"),
        ({"trajectory.json": "{}"}, "prior context: not supported yet"),
        ({"environment/repo/.git/HEAD": "x"}, r"repo/\.git: the agent could read the task's history"),
        (
            {"environment/backup/HEAD": "x", "environment/backup/objects/a": "", "environment/backup/refs/b": ""},
            "history",
        ),
        ({"environment/x.bin": "# v2 git bundle\n"}, r"environment/x\.bin: the agent could read the task's history"),
        ({"environment/x.pack": "PACK\0\0\0\2"}, r"environment/x\.pack: the agent could read the task's history"),
        ({"environment/tests/test.sh": "x"}, "environment/tests: the agent could read"),
        ({"environment/solve.sh": "x"}, "environment/solve.sh: the agent could read"),
        (
            {"solution/fix.py": "def answer():\n    return 42  # the whole of it\n", "environment/old/x.py": None},
            r"environment/old/x\.py: the same file stands in tests/ or solution/",
        ),
    ],
)
def test_a_broken_or_leaking_folder_is_one_line(
    write: Callable[..., Path], files: dict[str, str | None], message: str
) -> None:
    if "solution/fix.py" in files:
        files = {**files, "environment/old/x.py": files["solution/fix.py"]}
    toml = files.pop("task.toml", "")
    path = write(toml, **files)
    with pytest.raises(TaskError, match=message):
        HarborTasks(path, limits=CAPS)


def test_links_and_special_files_in_an_environment_are_refused(write: Callable[..., Path]) -> None:
    path = write(**{"environment/x": "1", "solution/solve.sh": "true"})
    (path / "one" / "environment" / "inner").symlink_to("x")
    assert len(HarborTasks(path, limits=CAPS)) == 1
    (path / "one" / "environment" / "link").symlink_to("../solution/solve.sh")
    with pytest.raises(TaskError, match="a link out of the environment"):
        HarborTasks(path, limits=CAPS)
    (path / "one" / "environment" / "link").unlink()
    os.mkfifo(path / "one" / "environment" / "fifo")
    with pytest.raises(TaskError, match="neither a file, a folder nor a link"):
        HarborTasks(path, limits=CAPS)


def test_no_tasks(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="no such folder"):
        HarborTasks(tmp_path / "none", limits=CAPS)
    (tmp_path / "notes").mkdir()
    with pytest.raises(TaskError, match=re.escape(f"tasks.path={tmp_path}: no task folder in it")):
        HarborTasks(tmp_path, limits=CAPS)


PYTEST = """[metadata.verifier]
kind = "pytest"
test_timeout_sec = 5
imports = ["src", "."]
paths = ["/opt/deps"]
plugins = ["pytest_asyncio"]
place = "tests"
"""


def test_how_work_is_graded(write: Callable[..., Path]) -> None:
    path = write("", name="a")
    write(
        PYTEST, name="b", **{"tests/test.sh": None, "tests/ids.txt": "# two\n\ntests/a/t.py::x[1 2]\ntests/a/t.py::y\n"}
    )
    write("", name="b", **{"task.toml": PYTEST, "tests/test.sh": None, "tests/a/t.py": ""})
    write('[metadata.verifier]\nkind = "ctrf"\nids = "list"\n', name="c", **{"tests/list": "any name\n"})
    plain, tests, report = HarborTasks(path, limits=CAPS)
    assert plain.metadata["verifier"] == Options()
    assert tests.metadata["verifier"] == Options(
        kind="pytest",
        ids=("tests/a/t.py::x[1 2]", "tests/a/t.py::y"),
        test_s=5,
        imports=("src", "."),
        paths=("/opt/deps",),
        plugins=("pytest_asyncio",),
        place="tests",
    )
    assert report.metadata["verifier"] == Options(kind="ctrf", ids=("any name",))


@pytest.mark.parametrize(
    ("table", "files", "message"),
    [
        ('kind = "junit"', {}, "metadata.verifier.kind='junit': only 'reward' or 'pytest' or 'ctrf'"),
        ('kinds = "ctrf"', {}, r"unknown key 'metadata.verifier.kinds': did you mean 'kind'\?"),
        ('ids = "ids.txt"', {}, "metadata.verifier.ids means nothing for kind='reward'"),
        ('kind = "ctrf"\nplace = "x"', {}, "metadata.verifier.place means nothing for kind='ctrf'"),
        ('kind = "ctrf"', {}, r"ids\.txt: expected the list of test ids, one a line: .*No such file"),
        ('kind = "ctrf"', {"tests/ids.txt": "# none\n"}, "expected test ids, one a line, each once"),
        ('kind = "ctrf"', {"tests/ids.txt": "a\nb\na\n"}, "expected test ids, one a line, each once"),
        ('kind = "ctrf"', {"tests/ids.txt": "a", "tests/test.sh": None}, "no tests/test.sh"),
        ('kind = "pytest"', {"tests/ids.txt": "t.py::x"}, "a test id names 't.py': expected a file of this folder"),
        ('kind = "pytest"', {"tests/ids.txt": "../t.py::x"}, "a test id names '../t.py'"),
        ('kind = "pytest"\nplace = "a"', {"tests/ids.txt": "t.py::x", "tests/t.py": ""}, "after 'a/'"),
        ('kind = "pytest"\nplace = "../a"', {}, "place='../a': expected a relative path without '..'"),
        ('kind = "pytest"\nimports = ["/x"]', {}, "expected a relative path without '..'"),
        ('kind = "pytest"\nplugins = "x"', {}, "expected a list of strings"),
        ('kind = "pytest"\ntest_timeout_sec = 0', {}, "expected a number above 0"),
    ],
)
def test_a_wrong_verifier_table_is_one_line(
    write: Callable[..., Path], table: str, files: dict[str, str | None], message: str
) -> None:
    path = write(f"[metadata.verifier]\n{table}\n", **files)
    with pytest.raises(TaskError, match=message) as caught:
        HarborTasks(path, limits=CAPS)
    assert "\n" not in str(caught.value)
