import tomllib
from pathlib import Path

import pytest

from qwengyre.config import Config, dump, load, resolve
from qwengyre.errors import ConfigError


def test_later_words_win_and_the_dump_reads_back(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('[rl]\nmu = 2\nphi = 1\n[sandbox]\nimages = { "a/b:1" = "host" }\n')
    config = load([file], ["rl.mu=3", "model.name=tiny", 'harness.env={A = "x y"}'])
    assert (config.rl.mu, config.rl.phi, config.model.name) == (3, 1, "tiny")
    assert config.harness.env == {"A": "x y"}
    values = tomllib.loads(dump(config))
    assert values.pop("schema_version") == 1
    assert resolve(values) == config


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("rl.groups_per_stp=3", "unknown key 'rl.groups_per_stp': did you mean 'groups_per_step'?"),
        ("trainr.loss=cispo", "unknown key 'trainr': did you mean 'trainer'?"),
        ("rl.mu=0", "rl.mu=0: input should be greater than or equal to 1"),
        ("policy.kind=elastik", "policy.kind='elastik'"),
        ("nonsense", "neither a file"),
    ],
)
def test_a_wrong_word_is_one_line_that_names_it(word: str, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        load([], [word])
    assert says in str(error.value)
    assert "\n" not in str(error.value)
    assert error.value.exit_code == 2


def test_a_file_that_is_not_toml_or_not_there_is_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "b.toml"
    broken.write_text("[rl\nmu=1")
    for file in (broken, tmp_path / "none.toml", tmp_path):
        with pytest.raises(ConfigError):
            load([file], [])


def test_values_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Config().rl.mu = 7  # type: ignore[misc]


def test_clip_bounds_lie_around_one():
    assert load([], ["trainer.loss=ppo", "trainer.clip=[0.5, 2.0]"]).trainer.clip == (0.5, 2.0)
    with pytest.raises(ConfigError, match=r"trainer\.clip.*0 <= low <= 1 <= high"):
        load([], ["trainer.clip=[1.2, 2.0]"])
