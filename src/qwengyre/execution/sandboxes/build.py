"""A sandbox by name: `bwrap`, `process`, or `package.module:Class` with the same constructor."""

from pathlib import Path

from qwengyre.errors import MachineError
from qwengyre.execution.sandboxes.base import HOST, Sandbox
from qwengyre.plugin import named

KINDS = {
    "bwrap": "qwengyre.execution.sandboxes.bwrap:BwrapSandbox",
    "process": "qwengyre.execution.sandboxes.process:ProcessSandbox",
}


def build(kind: str, *, run_id: str, scratch: Path) -> Sandbox:
    """The sandbox `kind`. Raises ConfigError for an unknown one."""
    return named("sandbox.kind", kind, KINDS)(run_id=run_id, scratch=scratch)


def check_images(images: dict[str, str]) -> None:
    """Raises MachineError for an image that is mapped neither to `host` nor to a folder with a root in it."""
    for image, root in images.items():
        if root != HOST and not (Path(root).is_absolute() and Path(root, "usr").is_dir()):
            raise MachineError(
                f"sandbox.images: '{image}' is mapped to '{root}': expected 'host' or the absolute path of a "
                "root folder (one that holds usr/)"
            )
