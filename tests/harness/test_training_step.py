"""A training step from each of four harnesses, with a sub-agent and a compaction in its data: what is trained, and
that its log-probs are true."""

from collections import Counter
from dataclasses import dataclass
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
TAKEN = {"main": 2, "main-summary": 1, "sub-agent": 1}
"""Class -> trajectories of each execution."""


@dataclass(frozen=True)
class Case:
    """More lines of `[harness]`, and what its two executions come to: calls, leaves, forks."""

    lines: str
    calls: int
    expected: Expected


def _titled() -> str:
    """opencode's settings with the call beside the task that its profile turns off."""
    name = "~/.config/opencode/opencode.json"
    text = profiles.read("opencode").launch.files[name].replace('"title": {"disable": true}', "")
    return f"files = {{ '{name}' = '''{text}''' }}"


FOUR = ("main", "main-summary", "main", "sub-agent")
CASES = {
    "claude-code": Case("args = { context = 40000 }", 9, Expected(FOUR, ONCE, sub_agents=1)),
    "codex": Case("args = { compact = 15000 }", 10, Expected(FOUR, ONCE, sub_agents=1)),
    "opencode": Case(
        "args = { context = 20000 }\n" + _titled(),
        10,
        Expected((*FOUR, "auxiliary"), ONCE | {"beside the task": 1}, sub_agents=1),
    ),
    "qwen-code": Case("args = { context = 62000 }", 9, Expected(FOUR, {"after a compaction": 2}, sub_agents=1)),
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
        _selected(one)
    step = metrics(run_dir)
    assert step["trajectories"] == sum(len(one.picks) for one in chosen)
    assert step["tokens/targets"] == sum(pick.tokens for one in chosen for pick in one.picks)
    compared = trained(run_dir)
    assert compared.calls == 2 * case.calls
    for row in rows:
        row.logprobs = f"{compared.largest:.0e}"


def _selected(one: Selection) -> None:
    """By role, higher classes first; each trainable row once; what is auxiliary never."""
    assert Counter(pick.role for pick in one.picks) == TAKEN
    order = [PRIORITY.index(pick.role) for pick in one.picks]
    assert order == sorted(order)
    taken = [row for pick in one.picks for row in pick.rows]
    aside = {leaf for leaf, role in one.roles.items() if role.role == AUXILIARY}
    wanted = {row for row, tokens in enumerate(trainable(one.tree)) if tokens} - aside
    assert sorted(taken) == sorted(wanted)
