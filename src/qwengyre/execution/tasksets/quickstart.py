"""Five families of one-command shell tasks with partial credit, generated from a seed.

| family | text | score |
|---|---|---|
| mkdir | Create a folder named D. | 1 if it is a folder |
| mkdir3 | Create the folders D, E and F. | k/3 |
| copy | Copy the file A to B. | .2 if B exists, +.8 if its content is equal and A intact |
| move | Rename the file A to B. | .2 B exists, +.4 content, +.4 content and A gone |
| delete | Delete the file A. | 1 if A is gone and the other file still there |

Any unexpected path halves the score. Index i is of family i mod 5, so five consecutive queries hold one of each.
"""

from pathlib import Path
from random import Random

from qwengyre.execution.tasksets.harbor import HarborTasks
from qwengyre.execution.tasksets.write import Task, write
from qwengyre.types import Limits

FAMILIES = ("mkdir", "mkdir3", "copy", "move", "delete")
GRADER = Path(__file__).parent / "graders" / "quickstart.py"
FORMAT = 1
"""Raise it when the text, the names or the scores change: a set on disk of another format is not reused."""
_TRAIN = """
    apple amber arrow basil beach berry birch bread brick brook cabin cedar chalk cherry cloud clover coral crane
    daisy delta ember fern field flint forest garden glass grape harbor hazel honey island ivory jade kite lake
    lemon lilac lotus maple marble meadow melon mint moon moss oak olive onyx orchid paper peach pearl pine plum
    pond poppy quartz rain raven ribbon river rose
"""
_HELD_OUT = """
    acorn anchor aspen badge barley beacon bell bloom breeze bridge candle canyon carbon castle comet copper cotton
    crystal dune eagle falcon feather galaxy ginger granite hill iris jasmine juniper lantern ledge linen mango
    meteor nectar nest ocean opal otter palm pebble pepper planet prairie saffron sage shell silver sparrow
    spruce summit thistle tiger tulip valley velvet violet walnut willow winter
"""
_WORDS: dict[str, list[str]] = {"train": list(_TRAIN.split()), "held_out": list(_HELD_OUT.split())}


class QuickstartTasks(HarborTasks):
    """`count` tasks of a split, written under `folder` on first use. Names of the two splits are disjoint."""

    def __init__(self, folder: Path, *, split: str, seed: int, count: int, limits: Limits):
        """Raises OSError when the folder cannot be written."""
        name = f"quickstart-{FORMAT}-{split}-{seed}-{count}"
        tasks = (task(index, split, seed) for index in range(count))
        super().__init__(write(folder / name, tasks, grader=GRADER, agent_s=300.0), limits=limits)


def task(index: int, split: str, seed: int) -> Task:
    """Task `index` of a split: the same for the same seed, whatever the count."""
    family = FAMILIES[index % len(FAMILIES)]
    random = Random(f"{seed}/{split}/{index}")
    words = random.sample(_WORDS[split], 5)
    name = f"{index:05d}-{family}"
    return _folders(name, family, words) if family.startswith("mkdir") else _files(name, family, words)


def _folders(name: str, family: str, words: list[str]) -> Task:
    new = words[: 1 if family == "mkdir" else 3]
    text = f"Create a folder named {new[0]}." if family == "mkdir" else "Create the folders {}, {} and {}.".format(*new)
    half = f"mkdir {new[0]} {words[4]}" if family == "mkdir" else f"mkdir {new[0]}"
    case = {"kind": family, "files": {}, "new": new}
    return Task(name, text, case=case, solve=f"mkdir {' '.join(new)}", half=half)


def _files(name: str, family: str, words: list[str]) -> Task:
    old, new = f"{words[0]}.txt", f"{words[1]}.txt"
    if family == "delete":
        files = {old: f"{words[2]}\n", new: f"{words[3]}\n"}
        case: dict[str, object] = {"kind": family, "files": files, "old": old, "keep": new}
        return Task(name, f"Delete the file {old}.", files, case, f"rm {old}", f"rm {old}; touch {words[4]}.txt")
    files = {old: f"{words[2]} {words[3]}\n"}
    case = {"kind": family, "files": files, "old": old, "new": [new]}
    if family == "copy":
        return Task(name, f"Copy the file {old} to {new}.", files, case, f"cp {old} {new}", f"touch {new}")
    return Task(name, f"Rename the file {old} to {new}.", files, case, f"mv {old} {new}", f"cp {old} {new}")
