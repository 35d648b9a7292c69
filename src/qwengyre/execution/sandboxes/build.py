"""A sandbox by name: `bwrap`, `process`, or `package.module:Class` with the same constructor."""

import importlib
from pathlib import Path

from qwengyre.errors import ConfigError, MachineError, nearest
from qwengyre.execution.sandboxes.base import HOST, Sandbox
from qwengyre.execution.sandboxes.bwrap import BwrapSandbox
from qwengyre.execution.sandboxes.process import ProcessSandbox

KINDS = {"bwrap": BwrapSandbox, "process": ProcessSandbox}


def build(kind: str, *, run_id: str, scratch: Path) -> Sandbox:
    """The sandbox `kind`. Raises ConfigError for an unknown one."""
    if ":" in kind:
        module, _, name = kind.partition(":")
        try:
            found = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"sandbox.kind='{kind}' cannot be imported: {error}") from None
        return found(run_id=run_id, scratch=scratch)
    if kind not in KINDS:
        raise ConfigError(f"sandbox.kind='{kind}' is unknown: {nearest(kind, list(KINDS))}")
    return KINDS[kind](run_id=run_id, scratch=scratch)


def check_images(images: dict[str, str]) -> None:
    """Raises MachineError for an image that is mapped neither to `host` nor to a folder with a root in it."""
    for image, root in images.items():
        if root != HOST and not (Path(root).is_absolute() and Path(root, "usr").is_dir()):
            raise MachineError(
                f"sandbox.images: '{image}' is mapped to '{root}': expected 'host' or the absolute path of a "
                "root folder (one that holds usr/)"
            )
