"""A user's own harness: a command template. Any CLI that can be pointed at a URL becomes a harness in ten lines."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from qwengyre.errors import ConfigError, MachineError, nearest
from qwengyre.execution.harnesses.base import Door, Launch
from qwengyre.types import Query

_NAMES = ("base_url", "root_url", "api_key", "model", "instruction", "workdir", "home")
_WORD = re.compile(r"\{\{[a-z_]+\}\}|\{([a-z_]+)\}")
"""A name in braces; in doubled braces it is somebody else's (a template of the harness), and stays."""


class CommandHarness:
    """`command` is a list of words; in it, in `env` and in `files` {base_url} {root_url} (without /v1) {api_key}
    {model} {instruction} {workdir} {home} stand for values, and so do the names of `values`. `files` are below the
    agent's home (`~/` may be written); `mounts` are host folders.

    Example:
        [harness]
        kind = "command"
        command = ["my-agent", "--yes", "{instruction}"]
        env = {OPENAI_BASE_URL = "{base_url}", OPENAI_API_KEY = "{api_key}"}
        mounts = ["/opt/my-agent"]
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        files: Mapping[str, str] | None = None,
        mounts: Sequence[str] = (),
        values: Mapping[str, str] | None = None,
    ):
        """Raises ConfigError for an empty command, an unknown {name}, or a file outside the home; MachineError for a
        mount that does not exist."""
        if not command:
            raise ConfigError(
                'harness.kind=\'command\' needs harness.command: a list such as ["my-agent", "{instruction}"]'
            )
        self._command, self._env, self._files = tuple(command), dict(env or {}), _home_files(files or {})
        self._values = dict(values or {})
        known = [*_NAMES, *self._values]
        for text in (*self._command, *self._env.values()):
            for name in filter(None, _WORD.findall(text)):
                if name not in known:
                    raise ConfigError(f"harness: '{{{name}}}' in '{text}' is unknown: {nearest(name, known)}")
        for mount in mounts:
            if not (Path(mount).is_absolute() and Path(mount).exists()):
                raise MachineError(f"harness.mounts: '{mount}': expected the absolute path of a folder on this machine")
        self._mounts = {str(PurePosixPath(mount)): str(Path(mount).resolve()) for mount in mounts}

    @property
    def mounts(self) -> dict[str, str]:
        """The folders, at their own paths."""
        return self._mounts

    def launch(self, query: Query, door: Door) -> Launch:
        """See `Harness.launch`. Values are put in once: braces inside a value are left alone."""
        values = {
            **self._values,
            "base_url": door.base_url,
            "root_url": door.base_url.removesuffix("/v1"),
            "api_key": door.api_key,
            "model": door.model,
            "instruction": query.instruction,
            "workdir": door.workdir,
            "home": door.home,
        }

        def fill(text: str) -> str:
            return _WORD.sub(lambda found: values.get(found[1], found[0]), text)

        return Launch(
            tuple(fill(word) for word in self._command),
            {name: fill(text) for name, text in self._env.items()},
            {name: fill(text) for name, text in self._files.items()},
        )


def _home_files(files: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, text in files.items():
        path = PurePosixPath(name.removeprefix("~/"))
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise ConfigError(
                f"harness.files: '{name}': expected a path below the agent's home, such as '~/.agent/config.json'"
            )
        found[str(path)] = text
    return found
