"""Generated task sets: format, splits, seeds, and the score of each family's whole, part and nothing in real boxes."""

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from qwengyre.errors import ConfigError, TaskError
from qwengyre.execution.harnesses.command import CommandHarness
from qwengyre.execution.runner import Runner
from qwengyre.execution.tasksets import letters, quickstart
from qwengyre.execution.tasksets.build import build
from qwengyre.types import Limits, Query, Verdict

Make = Callable[..., Runner]


def made(kind: str, folder: Path, limits: Limits, **changes: Any) -> Any:
    values = {"path": "", "count": 10, "split": "train", "seed": 3, "folder": folder, "limits": limits}
    return build(kind, **{**values, **changes})


FAMILIES = [kind for (kind,) in quickstart.KINDS]


def kind_of(query: Query) -> str:
    return query.name.partition("-")[2]


def test_five_consecutive_queries_hold_one_of_each_family(tmp_path: Path, limits: Limits) -> None:
    tasks = made("quickstart", tmp_path, limits)
    assert len(tasks) == 10
    for start in (0, 5):
        assert [kind_of(tasks[start + n]) for n in range(5)] == FAMILIES
    heads = ["Create a folder named ", "Create the folders ", "Copy the file ", "Rename the file ", "Delete the file "]
    for index, head in enumerate(heads):
        assert tasks[index].instruction.startswith(head)
        assert tasks[index].instruction.endswith(".")


def test_the_same_seed_gives_the_same_tasks_whatever_the_count(tmp_path: Path, limits: Limits) -> None:
    few, many = made("quickstart", tmp_path, limits, count=5), made("quickstart", tmp_path, limits, count=20)
    assert [q.instruction for q in few] == [many[n].instruction for n in range(5)]
    other = made("quickstart", tmp_path, limits, seed=4, count=20)
    assert [q.instruction for q in many] != [q.instruction for q in other]
    assert len({q.instruction for q in many}) == 20


def test_two_parts_are_two_families_over_names_of_their_own(tmp_path: Path, limits: Limits) -> None:
    tasks = made("two-part", tmp_path, limits)
    assert [kind_of(tasks[n]) for n in range(5)] == ["-".join(pair) for pair in quickstart.PAIRS]
    assert [kind_of(tasks[n]) for n in range(5, 10)] == ["-".join(pair) for pair in quickstart.PAIRS]
    assert re.fullmatch(r"Create a folder named \w+\. Then copy the file \w+\.\w+ to \w+\.\w+\.", tasks[0].instruction)
    for index in range(10):
        first, second = json.loads((Path(tasks[index].tests) / "case.json").read_text())["parts"]
        names = [{Path(name).stem for name in (*part["files"], *part["new"])} for part in (first, second)]
        assert not names[0] & names[1]


@pytest.mark.parametrize("split", ["train", "held_out"])
@pytest.mark.parametrize("kinds", [quickstart.KINDS, quickstart.PAIRS])
def test_many_variants(kinds: Any, split: str) -> None:
    words = len(quickstart._WORDS[split])
    texts = {quickstart.task(5 * turn, split, 3, kinds).instruction for turn in range(words)}
    assert len(texts) == words >= 80  # a kind repeats no first name before all were used
    again = {quickstart.task(5 * turn, split, 3, kinds).instruction for turn in range(words, 2 * words)}
    assert len(again) == words


def test_splits_share_no_word() -> None:
    words = {split: set(quickstart._WORDS[split]) for split in ("train", "held_out")}
    assert len(words["train"]) >= 50
    assert len(words["held_out"]) >= 50
    assert not words["train"] & words["held_out"]
    assert letters.task(0, "train", 0).instruction != letters.task(0, "held_out", 0).instruction


def test_a_set_is_written_once_and_whole(tmp_path: Path, limits: Limits) -> None:
    with ThreadPoolExecutor(4) as pool:
        sets = list(pool.map(lambda _: made("quickstart", tmp_path, limits), range(4)))
    assert len({q.tests for tasks in sets for q in tasks}) == 10
    (folder,) = tmp_path.iterdir()  # and nothing half-written beside it
    marker = folder / "00000-mkdir" / "instruction.md"
    marker.write_text("Kept.\n")
    assert made("quickstart", tmp_path, limits)[0].instruction == "Kept."


def test_kinds(tmp_path: Path, limits: Limits) -> None:
    folder = tmp_path / "cache"
    made("letters", folder, limits)
    (written,) = folder.iterdir()
    assert len(made("harbor", folder, limits, path=str(written), count=4)) == 4
    assert made("builtins:dict", folder, limits)["seed"] == 3  # a dotted path is called with the same keywords
    with pytest.raises(ConfigError, match=r"tasks\.kind='quikstart' is unknown: did you mean 'quickstart'\?"):
        made("quikstart", folder, limits)
    with pytest.raises(ConfigError, match=r"needs tasks\.path"):
        made("harbor", folder, limits)
    with pytest.raises(TaskError, match="no such folder"):
        made("harbor", folder, limits, path=str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="cannot be imported"):
        made("no.such:Thing", folder, limits)


SCORES = [
    ("quickstart", 0, (1.0, 0.5, 0.0)),
    ("quickstart", 1, (1.0, 0.333333, 0.0)),
    ("quickstart", 2, (1.0, 0.2, 0.0)),
    ("quickstart", 3, (1.0, 0.6, 0.0)),
    ("quickstart", 4, (1.0, 0.5, 0.0)),
    *(("two-part", index, (1.0, 0.5, 0.0)) for index in range(5)),
]


@pytest.mark.parametrize(("kind", "index", "expected"), SCORES)
async def test_quickstart_scores(
    kind: str, index: int, expected: Any, tmp_path: Path, limits: Limits, runner: Make, gateway: Path, not_queued: Any
) -> None:
    query = made(kind, tmp_path / "tasks", limits)[index]
    solution = f"{query.metadata['folder']}/solution"
    scores = []
    for number, command in enumerate((["sh", f"{solution}/solve.sh"], ["sh", f"{solution}/half.sh"], ["true"])):
        run = runner(CommandHarness(command, mounts=[solution]))
        ending = await run.run(f"0-{number}", query, token="t", socket=gateway, queued_s=not_queued)
        settled = await run.settle(f"0-{number}", query, ending)
        assert settled.verdict is Verdict.SCORED
        scores.append(settled.score)
    assert tuple(scores) == expected


HOSTILE = {
    "copy": "ln -s {old} {new}",  # a link is not a copy
    "mkdir": "ln -s /tmp {new}",
    "delete": "rm -rf ./*",  # the other file must stay
    "move": "mv {old} {new}; echo x >> {new}",
}


@pytest.mark.parametrize(("family", "most"), [("copy", 0.2), ("mkdir", 0.0), ("delete", 0.0), ("move", 0.2)])
async def test_quickstart_is_not_fooled(
    family: str, most: float, tmp_path: Path, limits: Limits, runner: Make, gateway: Path, not_queued: Any
) -> None:
    query = made("quickstart", tmp_path / "tasks", limits)[FAMILIES.index(family)]
    (part,) = json.loads((Path(query.tests) / "case.json").read_text())["parts"]
    line = HOSTILE[family].format(old=part["old"], new=(part["new"] or [""])[0])
    run = runner(CommandHarness(["bash", "-c", line]))
    ending = await run.run("0-0", query, token="t", socket=gateway, queued_s=not_queued)
    assert (await run.settle("0-0", query, ending)).score <= most


async def test_letters_scores(tmp_path: Path, limits: Limits, runner: Make, gateway: Path, not_queued: Any) -> None:
    query = made("letters", tmp_path / "tasks", limits)[0]
    lines = {
        "printf abcdefghijklmnopqrstuvwx > answer.txt": 1.0,
        "printf abcdefgh12345678 > answer.txt": 0.5,
        "printf a > answer.txt": 0.0625,  # a short answer is not a whole one
        "printf 'ABC\\303\\251\\377' > answer.txt": 0.0,
        "ln -s /tests/case.json answer.txt": 0.0,
        "true": 0.0,
    }
    for number, (line, score) in enumerate(lines.items()):
        run = runner(CommandHarness(["bash", "-c", line]))
        ending = await run.run(f"0-{number}", query, token="t", socket=gateway, queued_s=not_queued)
        settled = await run.settle(f"0-{number}", query, ending)
        assert (settled.verdict, settled.score) == (Verdict.SCORED, score), line
