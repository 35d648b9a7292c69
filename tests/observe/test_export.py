"""What is exported is what is trained, and `datasets` reads it as documented. One token traced; the tree drawn."""

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from test_ending import call, write

from qwengyre.errors import ConfigError, MachineError
from qwengyre.gateway.journal import rebuild
from qwengyre.observe import inspect
from qwengyre.observe.branching import selection
from qwengyre.observe.drawing import draw
from qwengyre.observe.export import export
from qwengyre.trajectory.pack import Recipe, weigh
from qwengyre.types import Settlement, Stretch, Verdict

SCORES = {"0-0": 1.0, "0-1": 0.0, "0-2": 0.5, "1-0": 1.0, "eval0-0": 1.0}
MIXED = (Stretch(0, 4, 2, "cell0.1", "abort"), Stretch(4, 20, 3, "cell1.0", "stop", kv_version=2))


def line(execution: str, **fields: Any) -> str:
    values = {"execution": execution, "task": "t", "verdict": "scored", "score": SCORES.get(execution, 0.0)}
    return json.dumps(values | {"ending": "finished", "reason": "", "work": "ab"} | fields) + "\n"


@pytest.fixture
async def run(tmp_path: Path) -> Path:
    """Group 0 has settled: two branches, one line, and a dropped member; of group 1 one of four has."""
    (tmp_path / "config.toml").write_text(
        '[run]\nseed = 0\n[rl]\njmax = 5\ngroup_size = 4\n[model]\nname = "m"\n[harness]\nkind = "shell"\n'
    )
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 7, "groups": [0]}) + "\n")
    lines = [line(name) for name in SCORES] + [line("0-3", verdict="dropped", score=0.9)]
    (tmp_path / "scores.jsonl").write_text("".join(lines))
    asked = {"id": "chatcmpl-7", "messages": [{"role": "user", "text": "go\x1b[2Jon"}], "signals": {"header:x": "y"}}
    branches = [call(0, -1, 10), call(1, 1, 20, stretches=MIXED, request=asked), call(2, 1, 30)]
    await write(tmp_path / "calls" / "0-0.calls", branches)
    for name in SCORES:
        if name != "0-0":
            await write(tmp_path / "calls" / f"{name}.calls", [call(0, -1, 8)])
    return tmp_path


@pytest.fixture
def rows(run: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(run / "cache"))
    export(run, run / "x.parquet")
    return datasets.Dataset.from_parquet(str(run / "x.parquet"), cache_dir=str(run / "cache"))


def test_datasets_reads_what_is_trained(run: Path, rows: Any) -> None:
    names = [(row["execution"], row["trajectory"]) for row in rows]
    assert names == [("0-0", 0), ("0-0", 1), ("0-1", 0), ("0-2", 0), ("1-0", 0)], (
        "no evaluation, no member without calls"
    )
    trees = {member: rebuild(run / "calls" / f"0-{member}.calls") for member in range(3)}
    settled = {member: Settlement(Verdict.SCORED, SCORES[f"0-{member}"]) for member in range(3)}
    settled[3] = Settlement(Verdict.DROPPED)
    trained = weigh(0, trees, settled, Recipe(0, 5, 4096, 4096))
    group = [row for row in rows if row["group"] == 0]
    weights = np.concatenate([np.where(row["mask"], np.float32(row["weight"]), 0) for row in group])
    assert sorted(weights[weights != 0]) == sorted(np.concatenate([m.weights[m.weights != 0] for m in trained]))
    assert [row["step"] for row in rows] == [7, 7, 7, 7, None]
    assert [row["advantage"] for row in rows] == [0.5, 0.5, -0.5, 0.0, None]
    assert rows[4]["weight"] is None


def test_each_column_says_what_the_page_says(run: Path, rows: Any) -> None:
    documented = re.findall(r"^\| (`.*?`) \|", Path("docs/export.md").read_text(), re.MULTILINE)
    assert {name for names in documented for name in re.findall(r"`(\w+)`", names)} == set(rows.column_names)
    one = next(row for row in rows if row["execution"] == "0-0" and -1 in row["versions"] and 3 in row["versions"])
    size = len(one["ids"])
    assert {len(one[name]) for name in ("mask", "logprobs", "versions", "calls")} == {size}
    at = np.array(one["calls"]) == 1
    assert np.array(one["versions"])[at].tolist() == [2] * 4 + [3] * 16
    assert set(np.array(one["versions"])[np.array(one["calls"]) == -1]) == {-1}
    assert [request["call"] for request in one["requests"]] == [0, 1]
    assert one["requests"][1]["id"] == "chatcmpl-7"
    assert one["requests"][1]["engines"] == ["cell0.1", "cell1.0"]
    assert sum(one["mask"]) == one["targets"]
    assert (one["role"], one["work"], one["temperature"]) == ("main", "ab", 1.0)


def test_a_file_is_whole_or_absent(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("qwengyre.observe.export._of_execution", broken)
    with pytest.raises(KeyboardInterrupt):
        export(run, run / "x.parquet")
    assert not [path.name for path in run.iterdir() if "parquet" in path.name]
    with pytest.raises(ConfigError, match="holds no run"):
        export(run / "calls", run / "x.parquet")
    with pytest.raises(MachineError, match="another --out"):
        export(run, run / "none" / "x.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MachineError, match=r"pip install 'qwengyre\[export\]'"):
        export(run, run / "x.parquet")


def test_each_trained_token_is_traced_to_its_request(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = selection(run / "calls" / "0-0.calls", 0, 5)
    second = next(n for n, pick in enumerate(found.picks) if pick.leaf == 3)
    before = sum(pick.tokens for pick in found.picks[:second])
    token = before + found.picks[second].tokens - 20 + 5  # the sixth of the 20 tokens of call 1
    inspect.show(Console(width=160), run, "0-0", rebuild=False, token=token)
    shown = capsys.readouterr().out
    assert f"trained token {token} of 60: id 5, position" in shown
    assert "advantage +0.5000 / 60 tokens; scores of its group: 0: 1.000, 1: 0.000, 2: 0.500, 3: dropped" in shown
    assert "sampled as token 5 of 20 of call 1" in shown
    assert "by cell1.0 under weights v3, on keys and values of v2" in shown
    assert "HTTP request chatcmpl-7" in shown
    assert "header:x: y" in shown
    assert "go\\x1b[2Jon" in shown
    inspect.show(Console(width=160), run, "1-0", rebuild=False, token=0)
    assert "its group has not settled" in capsys.readouterr().out
    for execution, number in (("0-0", 60), ("0-0", -1), ("", 0)):
        with pytest.raises(ConfigError, match="--token"):
            inspect.show(Console(width=160), run, execution, rebuild=False, token=number)


def test_a_tree_is_drawn_with_its_lines_forks_and_picks(run: Path) -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(draw(selection(run / "calls" / "0-0.calls", 0, 5), "title"))
    lines = console.export_text().splitlines()
    assert lines[0] == "title"
    assert lines[1].startswith("└── line of call 0: main, thread a (the first context line")
    assert lines[2].strip("├─│ ").startswith("call 0: 13 tokens, 10 sampled, v4")
    assert (
        lines[3]
        .strip("├─│└ ")
        .startswith("call 1: 23 tokens, 20 sampled, v2 v3: leaf 3, main, dead end (call 2 went on")
    )
    assert lines[4].strip("├─│└ ").startswith("call 2: 33 tokens, 30 sampled, v4: leaf 5, main; trajectory")
    assert lines[3].index("call 1") > lines[2].index("call 0") == lines[4].index("call 2"), "the trunk goes down"


async def test_a_very_deep_tree_is_drawn(tmp_path: Path) -> None:
    """Hundreds of forks in a row: the trunk is no staircase."""
    calls = [call(0, -1, 3)]
    for n in range(1, 1000, 2):  # each pair hangs below the newer one of the pair before
        calls += [call(n, 2 * n - 1, 3), call(n + 1, 2 * n - 1, 3)]
    await write(tmp_path / "0-0.calls", calls)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(draw(selection(tmp_path / "0-0.calls", 0, 5), "title"))
    assert max(map(len, console.export_text().splitlines())) < 160
