"""A harness by name: `shell`, `command`, one that has a profile (`mini-swe-agent`, ...), or `package.module:Class` made
with the keys of `harness.args`."""

from collections.abc import Mapping, Sequence
from typing import Any

from qwengyre import profiles
from qwengyre.errors import ConfigError, nearest
from qwengyre.execution.harnesses import install
from qwengyre.execution.harnesses.base import Harness
from qwengyre.execution.harnesses.command import CommandHarness
from qwengyre.execution.harnesses.shell import ShellHarness
from qwengyre.plugin import named
from qwengyre.types import Progress

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
    if kind in profiles.names():
        if command:
            raise ConfigError(f"harness.command is for kind='command'; kind='{kind}' starts it as its profile says")
        return _profiled(profiles.read(kind), env=env or {}, files=files or {}, mounts=mounts, args=args or {})
    return named("harness.kind", kind, BUILTIN | dict.fromkeys(profiles.names(), ""))(**(args or {}))


def ready(kind: str, args: Mapping[str, Any], progress: Progress) -> None:
    """Install the harness `kind` on this machine, if it has a profile and is not there yet. Raises ConfigError (its
    arguments), MachineError."""
    if kind in profiles.names():
        profile = profiles.read(kind)
        _check(profile, args)
        install.install(profile, progress)


def needs(kind: str) -> profiles.Needs:
    """The least that the harness `kind` asks of its sandbox and window, as far as its profile knows."""
    return profiles.read(kind).needs if kind in profiles.names() else profiles.Needs(memory_mb=0, pids=0)


def _profiled(
    profile: profiles.Profile,
    *,
    env: Mapping[str, str],
    files: Mapping[str, str],
    mounts: Sequence[str],
    args: Mapping[str, Any],
) -> CommandHarness:
    """The profile's recipe under the user's own environment, files and arguments. It must be installed."""
    _check(profile, args)
    launch, there = profile.launch, install.need(profile)
    places = {"prefix": str(there.folder), "program": there.program, "node": there.node}
    mine = {name.removeprefix("~/"): text for name, text in files.items()}
    theirs = {name.removeprefix("~/"): text for name, text in launch.files.items()}
    return CommandHarness(
        launch.command,
        env={**launch.env, **env},
        files={**theirs, **mine},
        mounts=(*there.shown, *mounts),
        values={**{name: str(value) for name, value in {**launch.args, **args}.items()}, **places},
    )


def _check(profile: profiles.Profile, args: Mapping[str, Any]) -> None:
    for name in args:
        if name not in profile.launch.args:
            raise ConfigError(f"unknown key 'harness.args.{name}': {nearest(name, list(profile.launch.args))}")
