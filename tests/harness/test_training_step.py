"""A training step from each of three harnesses, with a sub-agent and a compaction in its data: what is trained, and
that its log-probs are true."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from harness_runs import journals, metrics, run_config, scores, train, trained
from table import Expected, checked

from qwengyre import profiles
from qwengyre.observe.branching import Selection, rules, selection
from qwengyre.trajectory.roles import AUXILIARY, PRIORITY
from qwengyre.trajectory.select import trainable

pytestmark = pytest.mark.harness

SCRIPTS = Path(__file__).with_name("step_by_step.py")
ONCE = {"summary request": 1, "after a compaction": 1}


@dataclass(frozen=True)
class Case:
    """More lines of `[harness]`, and what its two executions come to: calls, leaves, forks."""

    lines: str
    calls: int
    expected: Expected
    taken: dict[str, int] = field(default_factory=lambda: {"main": 2, "main-summary": 1, "sub-agent": 1})
    """Class -> trajectories."""


def _remembering() -> str:
    """qwen-code's settings with the calls beside the task that its profile turns off."""
    name = "~/.qwen/settings.json"
    text = profiles.read("qwen-code").launch.files[name].replace('Memory": false', 'Memory": true')
    return f"files = {{ '{name}' = '''{text}''' }}"


CASES = {
    "claude-code": Case(
        "args = { context = 40000 }",
        9,
        Expected(("main-summary", "main", "sub-agent"), {"after a compaction": 1}, sub_agents=1),
        {"main": 1, "main-summary": 1, "sub-agent": 1},
    ),
    "codex": Case(
        "args = { compact = 15000 }", 10, Expected(("main", "main-summary", "main", "sub-agent"), ONCE, sub_agents=1)
    ),
    "qwen-code": Case(
        "args = { context = 65000 }\n" + _remembering(),
        10,
        Expected(
            ("main-summary", "main", "main", "sub-agent", "auxiliary"),
            {"after a compaction": 2, "beside the task": 1},
            sub_agents=1,
        ),
        {"main": 2, "main-summary": 1, "sub-agent": 1},
    ),
}


@pytest.mark.parametrize("kind", sorted(CASES))
def test_sub_agent_and_compaction_become_a_training_step(kind: str, tmp_path: Path) -> None:
    case = CASES[kind]
    run_dir = train(tmp_path, kind, f"{SCRIPTS}:{kind.replace('-', '_')}_story", case.lines)
    found = dict(sorted(scores(run_dir).items()))
    chosen = [selection(path, *rules(run_config(run_dir))) for path in sorted((run_dir / "calls").glob("*.calls"))]
    rows = [checked(kind, f"training {o.execution}", o.tree, o.log, o.roles, case.expected) for o in chosen]
    for row, score in zip(rows, found.values(), strict=True):
        row.score = f"{score:g}"
    assert found == {"0-0": 1.0, "0-1": 0.5}
    assert [len(log.calls) for _, log in journals(run_dir)] == [case.calls] * 2
    for one in chosen:
        _selected(one, case)
    step = metrics(run_dir)
    assert step["trajectories"] == sum(len(one.picks) for one in chosen)
    assert step["tokens/targets"] == sum(pick.tokens for one in chosen for pick in one.picks)
    compared = trained(run_dir)
    assert compared.calls == 2 * case.calls
    for row in rows:
        row.logprobs = f"{compared.largest:.0e}"


def _selected(one: Selection, case: Case) -> None:
    """By role, higher classes first; each trainable row once; what is auxiliary never."""
    assert Counter(pick.role for pick in one.picks) == case.taken
    order = [PRIORITY.index(pick.role) for pick in one.picks]
    assert order == sorted(order)
    taken = [row for pick in one.picks for row in pick.rows]
    aside = {leaf for leaf, role in one.roles.items() if role.role == AUXILIARY}
    wanted = {row for row, tokens in enumerate(trainable(one.tree)) if tokens} - aside
    assert sorted(taken) == sorted(wanted)
