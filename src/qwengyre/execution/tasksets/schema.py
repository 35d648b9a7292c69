"""The keys of a Harbor `task.toml`: which are known, of what type, and which we cannot honour yet.

Accepted silently is only what changes nothing here. A key that would change what is measured and that we do not
implement is an error, never ignored.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from qwengyre.errors import TaskError, nearest

Check = Callable[[Any], str]
"""Of a value: "" when it is fine, else what was expected."""


def text(value: Any) -> str:
    """A string."""
    return "" if isinstance(value, str) else "expected a string"


def number(value: Any) -> str:
    """A positive number (a bool is none)."""
    fine = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
    return "" if fine else "expected a number above 0"


def flag(value: Any) -> str:
    """A bool."""
    return "" if isinstance(value, bool) else "expected true or false"


def anything(value: Any) -> str:
    """No constraint: free data, or a key without meaning here."""
    return ""


def table(value: Any) -> str:
    """Environment variables: strings by name."""
    fine = isinstance(value, dict) and all(isinstance(v, str) and "\0" not in k + v for k, v in value.items())
    return "" if fine else "expected a table of strings without NUL"


def one_of(*words: str | int) -> Check:
    """One of the words that we can honour."""
    return lambda value: "" if value in words else f"only {' or '.join(map(repr, words))} can be honoured"


def empty(why: str) -> Check:
    """Known to the format and not honoured: fine only when it asks for nothing."""
    return lambda value: f"{why}: not supported yet, remove it" if value not in (0, "", [], {}, False) else ""


def size(value: Any) -> str:
    """`2G`, `512M`: the older spelling of a size."""
    fine = isinstance(value, str) and value[:-1].isdigit() and value[-1:].upper() in ("M", "G")
    return "" if fine else "expected a size such as '2G' or '512M'"


def megabytes(value: str) -> int:
    """Of a `size`."""
    return int(value[:-1]) * (1024 if value[-1].upper() == "G" else 1)


_USER = one_of("agent", "", 1000)  # what a box has
_NETWORK = one_of("no-network", "public")  # "public" is a permission; the sandbox has no network all the same

SCHEMA: dict[str, Any] = {
    "schema_version": text,
    "version": text,
    "task": {"name": text, "description": text, "version": anything, "authors": anything, "keywords": anything},
    "metadata": anything,
    "agent": {
        "timeout_sec": number,
        "user": _USER,
        "network_mode": _NETWORK,
        "allowed_hosts": empty("a network allowlist"),
    },
    "verifier": {
        "timeout_sec": number,
        "env": table,
        "user": _USER,
        "network_mode": _NETWORK,
        "allowed_hosts": empty("a network allowlist"),
        "environment_mode": one_of("shared", "separate"),
        "environment": empty("a verifier environment of its own"),
        "collect": empty("collect hooks"),
    },
    "environment": {
        "build_timeout_sec": number,
        "docker_image": text,
        "os": one_of("linux"),
        "cpus": number,
        "memory_mb": number,
        "memory": size,
        "storage_mb": number,
        "storage": size,
        "gpus": empty("GPUs"),
        "gpu_types": empty("GPUs"),
        "tpu": empty("TPUs"),
        "network_mode": _NETWORK,
        "allowed_hosts": empty("a network allowlist"),
        "allow_internet": flag,
        "mcp_servers": empty("MCP servers"),
        "env": table,
        "skills_dir": empty("a skills folder"),
        "healthcheck": empty("health checks"),
        "workdir": text,
    },
    "solution": {"env": anything},
    "artifacts": anything,
    "steps": empty("multi-step tasks"),
    "multi_step_reward_strategy": anything,
}


def check(values: dict[str, Any], file: Path) -> None:
    """Raises TaskError naming the file, the key, what was given and what was expected."""
    _check(values, SCHEMA, file, "")


def _check(values: dict[str, Any], schema: dict[str, Any], file: Path, at: str) -> None:
    for key, value in values.items():
        path = f"{at}{key}"
        known = schema.get(key)
        if known is None:
            raise TaskError(f"{file}: unknown key '{path}': {nearest(key, list(schema))}")
        if isinstance(known, dict):
            if not isinstance(value, dict):
                raise TaskError(f"{file}: {path}={value!r}: expected a table [{path}]")
            _check(value, known, file, f"{path}.")
        elif wrong := known(value):
            raise TaskError(f"{file}: {path}={value!r}: {wrong}")
