"""Profiles are data that can be wrong: each that ships is read, and what is wrong with one is one line."""

import re
from pathlib import Path

import pytest

from qwengyre import profiles
from qwengyre.errors import ConfigError


@pytest.mark.parametrize("name", [*profiles.names(), profiles.NODE])
def test_what_ships_is_pinned(name: str) -> None:
    profile = profiles.read(name)
    assert profile.name == name
    for package in profile.install.packages:
        assert re.search(r"(==|.@)\d+\.\d+\.\d+$", package), f"{package} has no exact version"
    assert profile.version in profile.install.packages[0]
    if profile.install.constraints:
        pins = (profiles.FOLDER / profile.install.constraints).read_text().splitlines()
        assert pins
        assert all(re.fullmatch(r"[\w.-]+==[\w.+!-]+", line) for line in pins), name
    if profile.install.kind == "npm":
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", profile.install.before)


@pytest.mark.parametrize("name", profiles.names())
def test_what_it_says_of_requests_is_consistent(name: str) -> None:
    profile = profiles.read(name)
    assert all(bool(marker.pattern) != (marker.where == "no_tools") for marker in profile.markers)
    assert bool(profile.signals.kind) == bool(profile.signals.kinds)
    assert all(marker.pattern == marker.pattern.lower() for marker in profile.markers)
    assert len({fork.name for fork in profile.known_forks}) == len(profile.known_forks)
    assert set(profile.launch.args).isdisjoint({"base_url", "model", "prefix", "program", "node", "home"})


def test_an_unknown_name_is_told_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'mini-swe-agent'"):
        profiles.read("mini-swe")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('protocol = "chat"', 'protocol = "char"', "protocol: input should be"),
        ("megabytes = 750", "megabyte = 750\nmegabytes = 750", "install.megabyte: extra inputs"),
        ("[waiting]", '[signals]\nsession = ["X-Session"]\n[waiting]', "signals.session: .*neither header:name nor"),
        ("[waiting]", '[[markers]]\nrole = "main"\nwhere = "system"\npattern = "("\n[waiting]', "not a regular expr"),
        ('name = "mini', "name = mini", "not a TOML file"),
    ],
)
def test_a_broken_profile_is_one_line(
    old: str, new: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (profiles.FOLDER / "mini-swe-agent.toml").read_text()
    assert old in text
    (tmp_path / "mini-swe-agent.toml").write_text(text.replace(old, new, 1))
    monkeypatch.setattr(profiles, "FOLDER", tmp_path)
    with pytest.raises(ConfigError, match=message) as caught:
        profiles.read("mini-swe-agent")
    assert len(str(caught.value).splitlines()) == 1


def test_what_a_harness_does_to_its_calls_is_its_own() -> None:
    claude, opencode = profiles.edits("claude-code"), profiles.edits("opencode")
    assert claude["fills"]
    assert "invalid" not in claude["renamed"]
    assert opencode["renamed"] == {"invalid": "*"}
    assert not opencode["fills"]
    assert profiles.edits("shell") == {"renamed": {}, "cut": [], "fills": False, "trims": False}
    everyone = profiles.edits(*profiles.names())
    assert everyone["fills"]
    assert everyone["renamed"]["invalid"] == "*"
    ((tool, argument, pattern),) = claude["cut"]
    assert (tool, argument, re.sub(pattern, "", "cd '/a b' && ls")) == ("Bash", "command", "ls")
