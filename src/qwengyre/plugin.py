"""Plug-in points: a built-in's name or a dotted path `package.module:Name`, taken from the configuration."""

from importlib import import_module
from typing import Any

from qwengyre.errors import ConfigError, nearest


def check(key: str, kind: str, builtin: dict[str, str]) -> None:
    """Whether `named` would know the name, without importing anything. Raises ConfigError."""
    if ":" not in builtin.get(kind, kind):
        raise ConfigError(f"{key}='{kind}' is unknown: {nearest(kind, list(builtin))}, or package.module:Name")


def named(key: str, kind: str, builtin: dict[str, str]) -> Any:
    """The class or function that `kind` names. `builtin` maps short names to dotted paths; `key` is for the message.

    Raises ConfigError for an unknown short name, a module that cannot be imported, or a name it lacks.
    """
    check(key, kind, builtin)
    module, _, name = builtin.get(kind, kind).partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{key}='{kind}' cannot be imported: {error}") from None
