"""A toy for an untrained byte-level model: write letters. Scores of random replies differ, so a gradient exists.

The harness (`shell`, style `answer`) writes the reply into answer.txt; the score is the share of its characters that
are a to z, counted over at least 16 characters.
"""

from pathlib import Path

from qwengyre.execution.tasksets.harbor import HarborTasks
from qwengyre.execution.tasksets.write import Task, write
from qwengyre.types import Limits

GRADER = Path(__file__).parent / "graders" / "letters.py"
FORMAT = 1


class LettersTasks(HarborTasks):
    """`count` tasks of a split, written under `folder` on first use; they differ by a number in the text."""

    def __init__(self, folder: Path, *, split: str, seed: int, count: int, limits: Limits):
        """Raises OSError when the folder cannot be written."""
        name = f"letters-{FORMAT}-{split}-{seed}-{count}"
        tasks = (task(index, split, seed) for index in range(count))
        super().__init__(write(folder / name, tasks, grader=GRADER, agent_s=300.0), limits=limits)


def task(index: int, split: str, seed: int) -> Task:
    """Task `index`: even numbers of sheets for training, odd ones held out."""
    sheet = 2 * (1000 * (seed % 1000) + index) + (split == "held_out")
    solve = "printf abcdefghijklmnopqrstuvwx > answer.txt"
    return Task(
        f"{index:05d}-letters", f"Letters, sheet {sheet}.", {}, {}, solve, "printf abcdefgh12345678 > answer.txt"
    )
