"""A task set by name: `quickstart`, `two-part` (harder), `letters`; with a path, `harbor`, or `verl` and `slime`
(prompts with answers); or `package.module:Class`."""

from pathlib import Path

from qwengyre.errors import ConfigError, nearest
from qwengyre.execution.tasksets.base import TaskSet
from qwengyre.execution.tasksets.harbor import HarborTasks
from qwengyre.execution.tasksets.letters import LettersTasks
from qwengyre.execution.tasksets.prompts import PromptTasks
from qwengyre.execution.tasksets.quickstart import QuickstartTasks
from qwengyre.plugin import named
from qwengyre.types import Limits

KINDS = ("quickstart", "two-part", "letters", "harbor", "verl", "slime")


def build(  # noqa: PLR0913  (the keys of [tasks], and what caps them)
    kind: str, *, path: str, count: int, split: str, seed: int, folder: Path, limits: Limits
) -> TaskSet:
    """The task set `kind`, all of it read and checked.

    `path` is for those that read; `split` and `seed` are for generators. What has to be written goes below `folder` (a
    cache that outlives the run, on the boxes' file system). `limits` cap what tasks ask for. A class of one's own is
    made with exactly these keyword arguments. Raises ConfigError, TaskError.
    """
    if ":" in kind:
        return named("tasks.kind", kind, {})(
            path=path, count=count, split=split, seed=seed, folder=folder, limits=limits
        )
    if kind in ("quickstart", "two-part"):
        hard = kind == "two-part"
        return QuickstartTasks(folder, split=split, seed=seed, count=count, limits=limits, two_part=hard)
    if kind == "letters":
        return LettersTasks(folder, split=split, seed=seed, count=count, limits=limits)
    if kind not in KINDS:
        raise ConfigError(f"tasks.kind='{kind}' is unknown: {nearest(kind, list(KINDS))}")
    if not path:
        what = "a task folder in Harbor format, or a folder of them" if kind == "harbor" else "a file of prompts"
        raise ConfigError(f"tasks.kind='{kind}' needs tasks.path: {what}")
    if kind in ("verl", "slime"):
        return PromptTasks(kind, Path(path), folder, count=count, limits=limits)
    return HarborTasks(Path(path), limits=limits, count=count)
