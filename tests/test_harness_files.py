"""A harness's own configuration file beside ours: its text is taken into the configuration."""

from pathlib import Path

import pytest

from qwengyre.config import dump, load
from qwengyre.errors import ConfigError


def test_a_file_becomes_its_text_relative_to_the_configuration(tmp_path: Path) -> None:
    text = 'agent:\n  system_template: "{{task}} \\"quoted\\""\n'
    (tmp_path / "agent.yaml").write_text(text)
    (tmp_path / "a.toml").write_text('[harness.files]\n"~/a.yaml" = { path = "agent.yaml" }\n"~/b" = "{model}"\n')
    config = load([tmp_path / "a.toml"], [])
    assert config.harness.files == {"~/a.yaml": text, "~/b": "{model}"}
    (tmp_path / "agent.yaml").unlink()
    (tmp_path / "resolved.toml").write_text(dump(config))
    assert load([tmp_path / "resolved.toml"], []) == config  # a run folder needs no other file


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('[harness.files]\n"~/a.yaml" = { path = "none.yaml" }\n')
    with pytest.raises(ConfigError, match=r"harness\.files: '~/a\.yaml' in .*none\.yaml cannot be read.*relative to"):
        load([tmp_path / "a.toml"], [])
    (tmp_path / "a.toml").write_text('[harness.files]\n"~/a.yaml" = { pth = "none.yaml" }\n')
    with pytest.raises(ConfigError, match=r"harness\.files\.~/a\.yaml"):
        load([tmp_path / "a.toml"], [])
