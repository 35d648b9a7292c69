"""What would go wrong in every execution of a run, told before it starts. Looks at names and paths only."""

import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from qwengyre.cluster.cell import ENGINES, TRAINERS
from qwengyre.config import Config, Harness, Sandbox
from qwengyre.errors import ConfigError, MachineError
from qwengyre.execution.tasksets.base import TaskSet
from qwengyre.plugin import check

LOOKED_AT = 256
"""Tasks that are looked at: the first ones."""
SEEN = ("/usr", "/bin", "/sbin", "/lib", "/lib64")
"""What a sandbox with the image `host` shows of this machine."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


RUN = ("ray", "torch", "transformers", "starlette", "uvicorn", "httpx", "safetensors", "psutil", "filelock")
"""What the extra `run` brings, as it is imported."""


def check_installed(wanted: Sequence[str] = RUN) -> None:
    """Looks, without importing. Raises MachineError where only the core is installed."""
    if missing := [package for package in wanted if find_spec(package) is None]:
        raise MachineError(
            f"only the core is installed here (missing {', '.join(missing)}), enough for `sim` and `inspect`: "
            "pip install 'qwengyre[run,smollm2]', or `make setup` in a checkout"
        )


def check_kinds(config: Config) -> None:
    """Engine and trainer, which are made in the cells only. Raises ConfigError."""
    check("engine.kind", config.engine.kind, ENGINES)
    check("trainer.kind", config.trainer.kind, TRAINERS)


def unmapped(tasks: TaskSet, images: dict[str, str]) -> str:
    """A warning about tasks whose image means nothing here: nothing is run for them, and their reward is 0."""
    looked_at = min(len(tasks), LOOKED_AT)
    wanted = [tasks[index].image for index in range(looked_at)]
    unknown = sorted({image for image in wanted if image and image not in images})
    if not unknown:
        return ""
    count = sum(image in unknown for image in wanted)
    example = f'[sandbox.images] "{unknown[0]}" = "host"'
    return (
        f"{count} of {looked_at} tasks want an image that [sandbox.images] does not map ({', '.join(unknown[:3])}): "
        f"nothing is run for them and they score 0. Map it: {example}, or a root folder"
    )


def unseen(harness: Harness, sandbox: Sandbox) -> str:
    """A warning about a command that the sandbox may not find. Raises ConfigError for one that it cannot."""
    if not harness.command or any(root != "host" for root in sandbox.images.values()):
        return ""  # a root folder may hold it
    program = harness.command[0]
    if program.startswith("/") and "{" not in program:
        shown = [*harness.mounts, *(SEEN if sandbox.kind == "bwrap" else ("/",))]
        if not Path(program).exists() or not any(Path(program).is_relative_to(folder) for folder in shown):
            raise ConfigError(
                f"harness.command starts {program}, which the sandbox does not see: "
                f"expected a program below one of {', '.join(shown)}; add its folder to harness.mounts"
            )
    elif "/" not in program and "{" not in program and not shutil.which(program, path=_path(harness)):
        return f"harness.command starts '{program}', which is on no PATH here: give its absolute path and mount it"
    return ""


def _path(harness: Harness) -> str:
    return f"{harness.env.get('PATH', '')}:{PATH}"
