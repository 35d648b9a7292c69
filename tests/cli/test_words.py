"""What a user sees for words that make no command: one line, what to do, exit 2."""

import sys

import pytest

from qwengyre.cli import main
from qwengyre.config import load, resolve
from qwengyre.errors import ConfigError


def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["qwengyre", *words])
    with pytest.raises(SystemExit) as left:
        main()
    shown = capsys.readouterr()
    assert isinstance(left.value.code, int)
    return left.value.code, shown.out, shown.err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("train",), "missing argument 'CONFIG.toml|section.key=value': see `qwengyre train --help`"),
        (("trian", "x"), "no such command 'trian'. Did you mean 'train': see `qwengyre --help`"),
        (
            ("train", "x.toml", "--rl.group_size=4"),
            "no option --rl.group_size: a key of the configuration is written without dashes, rl.group_size=VALUE",
        ),
        (("train", "no.toml"), "no configuration file at no.toml: give the path of a TOML file"),
        (("train", "src"), "src is a folder: give the path of a TOML file"),
        (("train", "x"), "no configuration file at x: give the path of a TOML file"),
        (("inspect", "src"), "src holds no run (no config.toml): give the folder that `qwengyre train` named"),
        (("sim", "nowhere"), "no workload 'nowhere': known: "),
    ],
)
def test_one_line_for_each_mistake(
    words: tuple[str, ...], line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = said(monkeypatch, capsys, *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"error: {line}")


@pytest.mark.parametrize("words", [(), ("harness",)])
def test_without_words_there_is_the_help(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = said(monkeypatch, capsys, *words)
    assert (code, err) == (2, "")
    assert "Commands:" in out


def test_help_ends_well_and_names_the_commands_as_a_newcomer_needs_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = said(monkeypatch, capsys, "--help")
    assert code == 0
    places = [out.index(f"\n  {name} ") for name in ("sim", "train", "eval", "inspect", "doctor")]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("key", "ours"),
    [
        ("rollout.n", "rl.group_size"),
        ("actor_rollout_ref.rollout.n", "rl.group_size"),
        ("trainer.lr", "trainer.learning_rate"),
        ("rl.max_new_tokens", "rl.max_tokens"),
        ("trainer.save_freq", "checkpoint.every"),
    ],
)
def test_a_name_of_another_framework_is_told_ours(key: str, ours: str) -> None:
    with pytest.raises(ConfigError, match=rf"unknown key '.*': here it is '{ours}'"):
        load([], [f"{key}=4"])


def test_every_name_that_is_told_exists() -> None:
    from qwengyre.config import Config
    from qwengyre.wording import FOREIGN

    for ours in FOREIGN.values():
        section, key = ours.split()[0].split(".")
        assert key in type(getattr(Config(), section)).model_fields


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"model": "tiny"}, "model='tiny': expected a section, as [model] or model.name=VALUE"),
        ({"harness": {"command": "agent"}}, "harness.command='agent': expected a list, as "),
        ({"rl": {"group_size": "two"}}, "rl.group_size='two': expected a whole number"),
        ({"rl": {"group_size": 1}}, "rl.group_size=1: input should be greater than or equal to 2"),
        ({"eval": {"before": "maybe"}}, "eval.before='maybe': expected true or false"),
        ({"trainer": {"clip": [2, 3]}}, "trainer.clip"),
    ],
)
def test_what_was_expected_is_said_in_words_of_toml(given: dict[str, object], line: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolve(given)
    assert str(error.value).startswith(line)
