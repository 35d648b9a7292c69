"""Shell tasks of one command, with partial credit, generated from a seed; and a harder set of two such parts a task.

| family | text | score |
|---|---|---|
| mkdir | Create a folder named D. | 1 if it is a folder |
| mkdir3 | Create the folders D, E and F. | k/3 |
| copy | Copy the file A to B. | .2 if B exists, +.8 if its content is equal and A intact |
| move | Rename the file A to B. | .2 B exists, +.4 content, +.4 content and A gone |
| delete | Delete the file A. | 1 if A is gone and the other file still there |

Two parts: "Create a folder named D. Then copy the file A to B."; the score is the mean of the parts'. Any unexpected
path halves the score. Index i is of kind i mod 5, so five consecutive queries hold one of each. The names of the two
splits are disjoint; no two tasks of a kind have the same first name before all names of the split were used.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from qwengyre.execution.tasksets.harbor import HarborTasks
from qwengyre.execution.tasksets.write import Task, write
from qwengyre.types import Limits

KINDS = (("mkdir",), ("mkdir3",), ("copy",), ("move",), ("delete",))
PAIRS = (("mkdir", "copy"), ("copy", "delete"), ("move", "mkdir"), ("delete", "mkdir3"), ("mkdir3", "move"))
GRADER = Path(__file__).parent / "graders" / "quickstart.py"
FORMAT = 2
"""Raise it when the text, the names or the scores change: a set on disk of another format is not reused."""
_NAMES = 5
"""Names that one part uses at most."""
_ENDINGS = (".txt", ".md", ".csv", ".log")
_TRAIN = """
    apple amber arrow basil beach berry birch bread brick brook cabin cedar chalk cherry cloud clover coral crane
    daisy delta drum ember fern field flint flour forest garden glass grape harbor hazel honey island ivory jade kite
    knot lake lemon lilac lotus magnet maple marble meadow melon mint mirror moon moss oak olive onyx orchid paper peach
    pearl pine plum pond poppy quartz radio rain raven ribbon river robin rope rose salt sand snow star sugar swan table
    tower train trout tunnel turtle wagon wheat wind wolf wood yarn zebra
"""
_HELD_OUT = """
    acorn anchor aspen badge barley basket beacon bell bloom bottle breeze bridge button camel candle canyon carbon
    castle cello circle coffee comet copper cotton cricket crystal dolphin dune eagle falcon feather fiddle galaxy
    ginger granite hammer hill horse iris jacket jasmine juniper kettle lantern ledge lime linen lizard mango meteor
    needle nectar nest ocean opal otter oyster palm panda pebble pencil pepper piano planet prairie rabbit rocket
    saffron sage saddle shell silver sparrow spruce summit thistle tiger tomato tulip valley velvet violet walnut
    whale willow window winter
"""
_WORDS: dict[str, list[str]] = {"train": list(_TRAIN.split()), "held_out": list(_HELD_OUT.split())}


class QuickstartTasks(HarborTasks):
    """`count` tasks of a split, written under `folder` on first use. `two_part`: the harder set."""

    def __init__(self, folder: Path, *, split: str, seed: int, count: int, limits: Limits, two_part: bool = False):
        """Raises OSError when the folder cannot be written."""
        name = f"{'two-part' if two_part else 'quickstart'}-{FORMAT}-{split}-{seed}-{count}"
        tasks = (task(index, split, seed, PAIRS if two_part else KINDS) for index in range(count))
        super().__init__(write(folder / name, tasks, grader=GRADER, agent_s=300.0), limits=limits)


@dataclass(frozen=True)
class Part:
    """What is to be done, the files that are there, the paths that may be made, and shell lines that do it or half."""

    text: str
    solve: str
    half: str
    files: dict[str, str] = field(default_factory=dict[str, str])
    new: tuple[str, ...] = ()
    old: str = ""


def task(index: int, split: str, seed: int, kinds: tuple[tuple[str, ...], ...]) -> Task:
    """Task `index` of a split: the same for the same seed, whatever the count."""
    kind, turn = kinds[index % len(kinds)], index // len(kinds)
    random = Random(f"{seed}/{split}/{index}")
    words = _WORDS[split]
    first = Random(f"{seed}/{split}/{kind}/{turn // len(words)}").sample(words, len(words))[turn % len(words)]
    names = [first, *random.sample([w for w in words if w != first], _NAMES * len(kind) - 1)]
    parts: list[Part] = []
    for n, family in enumerate(kind):
        parts.append(_FAMILIES[family](names[_NAMES * n : _NAMES * (n + 1)], random.choice(_ENDINGS)))
    case = [{"kind": f, "files": p.files, "new": p.new, "old": p.old} for f, p in zip(kind, parts, strict=True)]
    return Task(
        f"{index:05d}-{'-'.join(kind)}",
        " Then ".join([parts[0].text, *(part.text[0].lower() + part.text[1:] for part in parts[1:])]),
        {name: text for part in parts for name, text in part.files.items()},
        {"parts": case},
        solve="\n".join(part.solve for part in parts),
        half=parts[0].half if len(parts) == 1 else parts[0].solve,
    )


def _mkdir(names: list[str], _: str) -> Part:
    new = names[0]
    return Part(f"Create a folder named {new}.", f"mkdir {new}", f"mkdir {new} {names[4]}", new=(new,))


def _mkdir3(names: list[str], _: str) -> Part:
    one, two, three = names[:3]
    line = f"mkdir {one} {two} {three}"
    return Part(f"Create the folders {one}, {two} and {three}.", line, f"mkdir {one}", new=(one, two, three))


def _copy(names: list[str], ending: str) -> Part:
    old, new, files = _pair(names, ending)
    return Part(f"Copy the file {old} to {new}.", f"cp {old} {new}", f"touch {new}", files, (new,), old)


def _move(names: list[str], ending: str) -> Part:
    old, new, files = _pair(names, ending)
    return Part(f"Rename the file {old} to {new}.", f"mv {old} {new}", f"cp {old} {new}", files, (new,), old)


def _delete(names: list[str], ending: str) -> Part:
    old, keep = names[0] + ending, names[1] + ending
    files = {old: f"{names[2]}\n", keep: f"{names[3]}\n"}
    return Part(f"Delete the file {old}.", f"rm {old}", f"rm {old}; touch {names[4]}{ending}", files, (), old)


def _pair(names: list[str], ending: str) -> tuple[str, str, dict[str, str]]:
    """A file that is there, the name of one to be made, and the first one's content."""
    old = names[0] + ending
    return old, names[1] + ending, {old: f"{names[2]} {names[3]}\n"}


_FAMILIES: dict[str, Callable[[list[str], str], Part]] = {
    "mkdir": _mkdir,
    "mkdir3": _mkdir3,
    "copy": _copy,
    "move": _move,
    "delete": _delete,
}
