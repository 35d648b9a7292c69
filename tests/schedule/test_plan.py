"""Letters and policies."""

import pytest

from qwengyre.errors import ConfigError
from qwengyre.schedule.plan import Plan, Policy, When

LETTERS = {"cells": 2, "groups_per_step": 3, "group_size": 2, "steps": 4, "capacity": 5}


def test_the_papers_letters() -> None:
    plan = Plan.for_policy("elastic", **LETTERS, standalone=1, mu=2, phi=1, slack=1)
    assert plan.num_cells == 3
    assert plan.depth == 9  # Qb = (phi + mu) B
    assert plan.max_staleness == 3  # phi + mu - 1 + slack
    assert [plan.deadline(v) for v in (0, 2)] == [3, 3]


def test_a_policy_is_a_name_for_settings() -> None:
    assert Policy.named("elastic") == Policy(0, None, lockstep=False, when=When.ROOM, streaming=True)
    assert Policy.named("async", 2) == Policy(2, 2, lockstep=False, when=When.ROOM, streaming=False)
    assert Policy.named("colocate") == Policy(0, None, lockstep=True, when=When.BURST, streaming=False)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("elastc", {}, "did you mean 'elastic'"),
        ("elastic", {"cells": 0}, "cells=0: give at least 1"),
        ("elastic", {"group_size": 1}, "group_size=1: give at least 2"),
        ("elastic", {"phi": -1}, "phi=-1: give at least 0"),
        ("async", {"training": 3}, "3 to 3 training cells of 2"),
        ("async", {"training": 0}, "0 to 0 training cells"),
        ("async", {"training": 2}, "none rolls out"),
    ],
)
def test_a_plan_that_cannot_run_is_refused(kind: str, changes: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Plan.for_policy(kind, **(LETTERS | changes))


def test_async_may_train_all_elastic_cells_beside_a_standalone_pool() -> None:
    assert Plan.for_policy("async", training=2, **LETTERS, standalone=1).most_training == 2


@pytest.mark.parametrize("policy", [Policy(share=1.5), Policy(share=-0.1), Policy(gate=-1.0)])
def test_settings_that_cannot_be(policy: Policy) -> None:
    with pytest.raises(ConfigError, match=r"policy\.(share|gate)"):
        Plan(**LETTERS, policy=policy)
