"""A harness by name: `shell`, `command`, or `package.module:Class` made with the keys of `harness.args`."""

from collections.abc import Mapping, Sequence
from typing import Any

from qwengyre.execution.harnesses.base import Harness
from qwengyre.execution.harnesses.command import CommandHarness
from qwengyre.execution.harnesses.shell import ShellHarness
from qwengyre.plugin import named

BUILTIN = {
    "command": "qwengyre.execution.harnesses.command:CommandHarness",
    "shell": "qwengyre.execution.harnesses.shell:ShellHarness",
}


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
    return named("harness.kind", kind, BUILTIN)(**(args or {}))
