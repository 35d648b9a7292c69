"""A pinned harness in a cache: a real virtual environment with a wheel made here, complete or absent."""

import json
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from qwengyre import profiles
from qwengyre.errors import ConfigError, MachineError
from qwengyre.execution.harnesses import build, install
from qwengyre.execution.harnesses.base import Door
from qwengyre.types import Limits, Phase, Query

LIMITS = Limits(agent_s=1, overall_s=1, verifier_s=1, memory_mb=1, pids=1, disk_mb=1)


def wheel(folder: Path) -> Path:
    """A package `wee` 1.2.3 with the command `wee`, which says hello."""
    path, info = folder / "wee-1.2.3-py3-none-any.whl", "wee-1.2.3.dist-info"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("wee.py", "def main(): print('hello')\n")
        packed.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: wee\nVersion: 1.2.3\n")
        packed.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: us\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        packed.writestr(f"{info}/entry_points.txt", "[console_scripts]\nwee = wee:main\n")
        packed.writestr(f"{info}/RECORD", "")
    return path


def profile(package: str, program: str = "bin/wee") -> profiles.Profile:
    return profiles.Profile(
        name="wee",
        version="1.2.3",
        about="",
        licence="MIT",
        protocol="chat",
        install=profiles.Install(kind="pip", packages=(package,), program=program, megabytes=20, seconds=5),
        launch=profiles.Launch(
            command=("{program}", "{instruction}", "--limit={limit}"),
            env={"URL": "{base_url}", "TOP": "{root_url}"},
            files={"~/a": "{model}", "~/b": "{{model}} of {home}"},
            args={"limit": 5},
        ),
    )


@pytest.fixture(scope="module")
def there(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[profiles.Profile, install.Installed, list[Phase]]]:
    """`wee`, installed once."""
    folder = tmp_path_factory.mktemp("cache")
    wee, told = profile(str(wheel(folder))), list[Phase]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QWENGYRE_CACHE", str(folder))
        yield wee, install.install(wee, told.append), told


def test_it_is_made_once_and_runs(there: tuple[profiles.Profile, install.Installed, list[Phase]]) -> None:
    wee, made, told = there
    assert subprocess.check_output([made.program], text=True) == "hello\n"
    assert made.folder.name == "wee-1.2.3"
    assert str(made.folder) in made.shown
    assert [told[0].over, told[-1].over] == [False, True]
    assert told[-1].done > 1e4
    again = list[Phase]()
    assert install.install(wee, again.append) == made
    assert again == []


def test_what_is_incomplete_or_other_is_not_there(
    there: tuple[profiles.Profile, install.Installed, list[Phase]],
) -> None:
    wee, made, _ = there
    mark = made.folder / "installed.json"
    text = mark.read_text()
    values = json.loads(text)
    for other in ("", "{", json.dumps(values | {"pins": "x"}), json.dumps(values | {"python": "/none/bin/python"})):
        mark.write_text(other)
        assert install.found(wee) is None, other
    mark.write_text(text)
    assert install.found(wee) == made
    assert install.found(profile("wee==1.2.4")) is None
    with pytest.raises(MachineError, match=r"wee 1\.2\.3 is not installed: qwengyre harness install wee"):
        install.need(profile("wee==1.2.4"))


def test_the_recipe_under_the_users_own(
    there: tuple[profiles.Profile, install.Installed, list[Phase]], monkeypatch: pytest.MonkeyPatch
) -> None:
    wee, made, _ = there
    monkeypatch.setattr(profiles, "names", lambda: ["wee"])
    monkeypatch.setattr(profiles, "read", lambda name: wee)
    harness = build.build("wee", env={"MORE": "{workdir}"}, files={"a": "mine"}, args={"limit": 7})
    door = Door("http://127.0.0.1:8080/x/tok/v1", "tok", "policy", "/app")
    query = Query(name="q", instruction="go", image="", workdir="/app", environment="", tests="", limits=LIMITS)
    launch = harness.launch(query, door)
    assert launch.argv == (made.program, "go", "--limit=7")
    assert launch.env == {"URL": door.base_url, "TOP": "http://127.0.0.1:8080/x/tok", "MORE": "/app"}
    assert launch.files == {"a": "mine", "b": "{{model}} of /home/agent"}
    assert harness.mounts == {path: path for path in made.shown}
    with pytest.raises(ConfigError, match=r"unknown key 'harness\.args\.limt': did you mean 'limit'"):
        build.build("wee", args={"limt": 1})
    with pytest.raises(ConfigError, match="for kind='command'"):
        build.build("wee", command=["x"])
    with pytest.raises(ConfigError, match="did you mean 'wee'"):
        build.build("we")


def test_what_fails_is_one_line_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QWENGYRE_CACHE", str(tmp_path))
    with pytest.raises(MachineError, match=r"harness wee: pip failed \(ERROR.*gone\.whl.*again: qwengyre") as caught:
        install.install(profile(str(tmp_path / "gone.whl")))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "harnesses" / "wee-1.2.3").exists()
    assert "wheel filename" in (tmp_path / "harnesses" / "wee-1.2.3.log").read_text()


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QWENGYRE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/there")
    assert install.cache() == Path("/there/qwengyre/harnesses")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert install.cache() == Path.home() / ".cache" / "qwengyre" / "harnesses"
    monkeypatch.setenv("QWENGYRE_CACHE", "/ours")
    assert install.cache() == Path("/ours/harnesses")
