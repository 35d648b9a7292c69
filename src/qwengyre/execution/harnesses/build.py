"""A harness by name: `shell`, `command`, or `package.module:Class` made with the keys of `harness.args`."""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from qwengyre.errors import ConfigError, nearest
from qwengyre.execution.harnesses.base import Harness
from qwengyre.execution.harnesses.command import CommandHarness
from qwengyre.execution.harnesses.shell import ShellHarness


def build(
    kind: str,
    *,
    command: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
    mounts: Sequence[str] = (),
    args: Mapping[str, Any] | None = None,
) -> Harness:
    """The harness `kind` from the keys of `[harness]`. Raises ConfigError, MachineError."""
    if kind == "command":
        return CommandHarness(command, env=env, files=files, mounts=mounts)
    if kind == "shell":
        return ShellHarness.of(dict(args or {}))
    if ":" not in kind:
        raise ConfigError(f"harness.kind='{kind}' is unknown: {nearest(kind, ['shell', 'command'])}")
    module, _, name = kind.partition(":")
    try:
        made = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"harness.kind='{kind}' cannot be imported: {error}") from None
    return made(**(args or {}))
