"""`qwengyre sim` and `qwengyre replay` as their users see them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from qwengyre.cli import app
from qwengyre.cluster.journal import Journal
from qwengyre.sim.policies import plan_of
from qwengyre.sim.run import simulate
from qwengyre.sim.workload import RL, Cluster, Workload

QUICK = ["rl.steps=4", "rl.groups_per_step=4", "cluster.cells=3"]
KEYS = (
    "policy hours hours_per_step tokens timed_out mean_staleness max_staleness train_busy train_idle slot_fill "
    "moves_per_execution switches lower_bound_hours"
)


def said(*words: str) -> str:
    done = CliRunner().invoke(app, [*words], catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


def values(*words: str) -> list[dict[str, Any]]:
    return json.loads(said("sim", *QUICK, "--json", *words))


def test_json_is_an_array_with_an_object_a_policy() -> None:
    found = values("--policy", "elastic", "--policy", "async", "--a", "1", "--policy", "colocate")
    assert [result["policy"] for result in found] == ["elastic", "async", "colocate"]
    assert all(list(result) == KEYS.split() for result in found)
    assert all(result["hours"] >= result["lower_bound_hours"] > 0 for result in found)


def test_a_seed_is_one_run() -> None:
    one = ("--policy", "elastic", "--seed")
    assert values(*one, "3") == values(*one, "3") != values(*one, "4")


def test_table_and_timelines() -> None:
    text = said("sim", *QUICK)
    assert "cell 2" in text
    assert "Fastest: elastic" in text
    assert "async a=" in text


def test_a_trace_gives_the_executions(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = [f"{g},{m},{600 + 60 * m},10" for g in range(16) for m in range(8)]
    trace.write_text("\n".join(["group,member,work_s,tokens_per_s", *rows]))
    (result,) = values("--policy", "elastic", "--trace", str(trace), "rate.env_frac=1")
    assert result["tokens"] == pytest.approx(16 * 10 * sum(600 + 60 * m for m in range(8)))


def test_a_sweep_in_json_and_as_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "sweep.png"
    found = values("--policy", "elastic", "--sweep", "rl.phi=0,1", "--plot", str(picture))
    assert [result["setting"] for result in found] == [{"rl.phi": 0}, {"rl.phi": 1}]
    assert picture.read_bytes().startswith(b"\x89PNG")
    said("sim", *QUICK, "--policy", "elastic", "--plot", str(tmp_path / "roles.svg"))
    assert "elastic" in (tmp_path / "roles.svg").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rl.stepz=4"], "did you mean 'steps'"),
        (["nowhere.json"], "no workload at nowhere.json"),
        (["swe_termnal"], "did you mean 'swe_terminal'"),
        (["--policy", "elastik"], "did you mean 'elastic'"),
        (["--policy", "async", "--a", "9"], "training cells"),
        (["--trace", "nowhere.csv"], "no trace at"),
        (["rl.mu=0"], "rl.mu"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(words: list[str], message: str) -> None:
    command = [sys.executable, "-c", "from qwengyre.cli import main; main()", "sim", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


def test_a_simulation_needs_neither_torch_nor_ray() -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['torch', 'ray', 'transformers', 'starlette', 'matplotlib']));"
        "from qwengyre.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code, "sim", *QUICK], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_recorded_run_is_replayed_and_asked_what_if(tmp_path: Path) -> None:
    work = Workload(cluster=Cluster(cells=2, slots_per_cell=8), rl=RL(steps=4, groups_per_step=2, execs_per_group=4))
    plan = plan_of(work, "elastic")
    with Journal(tmp_path / "journal.jsonl", plan) as journal:
        for event, actions in simulate(plan, work)[1].entries:
            journal.append(event, actions)
    told = json.loads(said("replay", str(tmp_path), "--policy", "colocate", "--cells", "4", "--json"))
    assert abs(told["error"]["hours"]) < 0.05
    assert [result["policy"] for result in told["what_if"]] == ["colocate"]
    text = said("replay", str(tmp_path))
    assert "hours" in text
    assert "Fastest" not in text
