"""A run's folder: claimed by exactly one run, resolved configuration inside, one writer at a time."""

import fcntl
import json
import os
import secrets
from pathlib import Path
from typing import IO, Any

from qwengyre import config as configuration
from qwengyre.config import Config
from qwengyre.errors import ConfigError, MachineError

FREE_ON_RESUME = {"cluster", "checkpoint", "gateway", "observe"}
"""Sections that may differ between a run and its resume: they do not touch what is trained."""


class RunFolder:
    """`claim` checks everything before it writes anything; `release` lets another process resume."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.id = secrets.token_hex(6)
        """Fresh for each claim: names the processes, cgroups and the temporary folder of this start of the run."""
        self._lock: IO[str] | None = None

    @property
    def config_file(self) -> Path:
        """The resolved configuration; its presence means that the folder holds a run."""
        return self.path / "config.toml"

    def claim(self, config: Config, *, resume: bool) -> None:
        """Make (or take up) the folder. Raises ConfigError or MachineError with nothing half-written."""
        self.check(config, resume=resume)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / "lock").open("a")
        except OSError as error:
            raise MachineError(f"{self.path} is not writable ({error.strerror}): give another --run-dir") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.release()
            raise ConfigError(
                f"{self.path} belongs to a run that is alive: stop it, or give another --run-dir"
            ) from None
        self._lock.truncate(0)
        print(json.dumps({"id": self.id, "pid": os.getpid()}), file=self._lock, flush=True)
        if not resume:
            for name in ("calls", "executions", "checkpoints"):
                (self.path / name).mkdir(exist_ok=True)
            unfinished = self.path / ".config.toml"
            unfinished.write_text(configuration.dump(config))
            unfinished.rename(self.config_file)

    def check(self, config: Config, *, resume: bool) -> None:
        """Everything that `claim` would refuse, without writing."""
        if resume:
            self._check_same(config)
        elif self.config_file.exists():
            raise ConfigError(f"{self.path} holds a run: add --resume to continue it, or give another --run-dir")
        above = self.path
        while not above.exists():
            above = above.parent
        if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
            raise MachineError(f"{self.path} cannot be made ({above} is not a writable folder): give another --run-dir")

    def release(self) -> None:
        """Let go of the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _check_same(self, config: Config) -> None:
        if not self.config_file.exists():
            raise ConfigError(f"--resume: {self.path} holds no run (no config.toml); leave --resume out to start one")
        before = configuration.load([self.config_file], []).model_dump()
        for section, values in config.model_dump().items():
            for key, value in values.items():
                if section not in FREE_ON_RESUME and before[section][key] != value:
                    raise ConfigError(
                        f"--resume: {section}.{key}={value!r} but the run in {self.path} has {before[section][key]!r}; "
                        "resume with the run's own config.toml"
                    )


def lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a .jsonl file; none when it is absent."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def mend(path: Path) -> None:
    """Cut off a last line that a kill tore."""
    if path.exists():
        os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
