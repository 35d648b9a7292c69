"""What would fail in every execution is told before the run starts."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qwengyre.cluster.foresee import check_installed, check_kinds, unmapped, unseen
from qwengyre.config import Config, Engine, Harness, Sandbox, Trainer
from qwengyre.errors import ConfigError, MachineError


def tasks(*images: str) -> Any:
    return [SimpleNamespace(image=image) for image in images]


def test_tasks_whose_image_means_nothing_here() -> None:
    told = unmapped(tasks("a:1", "", "b:2", "a:1"), {"b:2": "host"})
    assert told.startswith("2 of 4 tasks want an image that [sandbox.images] does not map (a:1)")
    assert unmapped(tasks("", "b:2"), {"b:2": "host"}) == ""


def harness(*command: str, **fields: Any) -> Harness:
    return Harness(kind="command", command=command, **fields)


def test_a_program_that_the_sandbox_does_not_see(tmp_path: Path) -> None:
    program = tmp_path / "agent"
    program.touch()
    with pytest.raises(ConfigError, match=r"does not see: expected .* harness\.mounts"):
        unseen(harness(str(program)), Sandbox())
    assert unseen(harness(str(program), mounts=(str(tmp_path),)), Sandbox()) == ""
    with pytest.raises(ConfigError, match="does not see"):
        unseen(harness(str(tmp_path / "no"), mounts=(str(tmp_path),)), Sandbox())
    assert unseen(harness(str(program)), Sandbox(kind="process")) == ""
    assert unseen(harness(str(program)), Sandbox(images={"a": "/some/root"})) == "", "the root may hold it"
    assert unseen(harness("/usr/bin/env"), Sandbox()) == ""


def test_a_program_on_no_path_is_a_warning(tmp_path: Path) -> None:
    assert "on no PATH" in unseen(harness("no-such-agent"), Sandbox())
    assert unseen(harness("env"), Sandbox()) == ""
    assert unseen(harness("./in-the-task.sh"), Sandbox()) == ""
    (tmp_path / "mine").write_text("")
    (tmp_path / "mine").chmod(0o755)
    assert unseen(harness("mine", env={"PATH": str(tmp_path)}), Sandbox()) == ""
    assert unseen(Harness(), Sandbox()) == ""


@pytest.mark.parametrize(
    "given", [Config(engine=Engine(kind="embeded")), Config(trainer=Trainer(kind="touch"))], ids=["engine", "trainer"]
)
def test_an_engine_or_trainer_that_nobody_knows(given: Config) -> None:
    with pytest.raises(ConfigError, match=r"is unknown: did you mean '(embedded|torch)'"):
        check_kinds(given)
    check_kinds(Config(engine=Engine(kind="my.module:Engine")))


def test_a_core_installation_says_what_is_missing_for_a_run() -> None:
    check_installed()
    with pytest.raises(MachineError, match=r"missing no_such_package.*`sim` and `inspect`: pip install 'qwengyre\[run"):
        check_installed(("ray", "no_such_package"))
