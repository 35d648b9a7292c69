"""A task set by name: `quickstart`, `two-part` (harder), `letters`, `harbor` with a path, or `package.module:Class`."""

from pathlib import Path

from qwengyre.errors import ConfigError, nearest
from qwengyre.execution.tasksets.base import TaskSet
from qwengyre.execution.tasksets.harbor import HarborTasks
from qwengyre.execution.tasksets.letters import LettersTasks
from qwengyre.execution.tasksets.quickstart import QuickstartTasks
from qwengyre.plugin import named
from qwengyre.types import Limits

KINDS = ("quickstart", "two-part", "letters", "harbor")


def build(  # noqa: PLR0913  (the keys of [tasks], and what caps them)
    kind: str, *, path: str, count: int, split: str, seed: int, folder: Path, limits: Limits
) -> TaskSet:
    """The task set `kind`, all of it read and checked.

    `path` is for `harbor`; `split` and `seed` are for generators, which write below `folder` (a cache that outlives
    the run, on the boxes' file system). `limits` cap what tasks ask for. A class of one's own is made with exactly
    these keyword arguments. Raises ConfigError, TaskError.
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
    if kind != "harbor":
        raise ConfigError(f"tasks.kind='{kind}' is unknown: {nearest(kind, list(KINDS))}")
    if not path:
        raise ConfigError("tasks.kind='harbor' needs tasks.path: a task folder in Harbor format, or a folder of them")
    return HarborTasks(Path(path), limits=limits, count=count)
