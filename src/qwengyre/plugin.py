"""Plug-in points: a built-in's name or a dotted path `package.module:Name`, taken from the configuration."""

from importlib import import_module
from typing import Any

from qwengyre.errors import ConfigError, nearest


def named(key: str, kind: str, builtin: dict[str, str]) -> Any:
    """The class or function that `kind` names. `builtin` maps short names to dotted paths; `key` is for the message.

    Raises ConfigError for an unknown short name, a module that cannot be imported, or a name it lacks.
    """
    path = builtin.get(kind, kind)
    module, colon, name = path.partition(":")
    if not colon:
        raise ConfigError(f"{key}='{kind}' is unknown: {nearest(kind, list(builtin))}, or package.module:Name")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{key}='{kind}' cannot be imported: {error}") from None
