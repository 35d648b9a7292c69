"""What a simulated run is made of: sizes, durations, costs and failures, as one JSON file of sections.

    {"cluster": {"cells": 8, "slots_per_cell": 62}, "rl": {"steps": 48, ...}, "exec": {...}, "rate": {...}, ...}

Durations of the model are hours (`_h`) where they are long and seconds (`_s`) where they are short. Unknown keys are
errors. The equations are in docs/simulator.md.
"""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from qwengyre.errors import ConfigError, nearest
from qwengyre.schedule.plan import When

HOUR = 3600.0
DEFAULT = "swe_terminal"
"""The shipped workload that `qwengyre sim` runs when it is given none."""


class Section(BaseModel):
    """A frozen section, strict about unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class Cluster(Section):
    """K elastic cells, S standalone rollout cells after them, and the slots (C_e, executions) of each."""

    cells: int = Field(default=8, ge=1)
    standalone: int = Field(default=0, ge=0)
    slots_per_cell: int = Field(default=64, ge=1)


class RL(Section):
    """The paper's letters: B groups a step, N executions a group, mu steps a burst, phi look-ahead, slack."""

    steps: int = Field(default=24, ge=1)
    groups_per_step: int = Field(default=16, ge=1)
    execs_per_group: int = Field(default=8, ge=2)
    mu: int = Field(default=4, ge=1)
    phi: int = Field(default=0, ge=0)
    stale_slack: int = Field(default=0, ge=0)


class Exec(Section):
    """Executions: work W = max(floor, median * exp(sigma_group z_g + sigma_within z_gi)) unloaded hours.

    `timeout_clock`: `active` stops while an execution is suspended, queued or in transit; `wall` runs on.
    """

    median_h: float = Field(default=0.3, gt=0)
    sigma_within: float = Field(default=0.6, ge=0)
    sigma_group: float = Field(default=0.4, ge=0)
    floor_h: float = Field(default=0.0, ge=0)
    timeout_h: float = Field(default=2.0, gt=0)
    timeout_clock: Literal["active", "wall"] = "active"
    tokens_per_h: float = Field(default=200_000.0, gt=0)
    sigma_tok: float = Field(default=0.0, ge=0)


class Rate(Section):
    """How executions slow each other down: share of the unloaded time spent in tools, and slope of decode latency."""

    env_frac: float = Field(default=1.0, ge=0, le=1)
    alpha: float = Field(default=0.0, ge=0)


class Train(Section):
    """A cell's throughput, the largest micro-step, and the optimizer (nothing trains while it runs)."""

    tokens_per_h_per_cell: float = Field(default=4e6, gt=0)
    microstep_tokens: int = Field(default=262_144, ge=1)
    opt_s: float = Field(default=20.0, ge=0)


class Cost(Section):
    """Seconds. `migrate_s` stalls a moved execution, `refresh_s` every live one at a publish (keys and values made
    again); an ended execution is scored in `settle_s`, a complete group selected and weighed in `weigh_s`."""

    to_train_s: float = Field(default=8.52, ge=0)
    to_rollout_s: float = Field(default=3.46, ge=0)
    migrate_s: float = Field(default=0.0, ge=0)
    publish_s: float = Field(default=20.0, ge=0)
    refresh_s: float = Field(default=0.0, ge=0)
    settle_s: float = Field(default=0.0, ge=0)
    weigh_s: float = Field(default=0.0, ge=0)


class Failures(Section):
    """Chances and times of what goes wrong; none by default."""

    dropped: float = Field(default=0.0, ge=0, le=1)
    """An execution ends without a score."""
    weightless: float = Field(default=0.0, ge=0, le=1)
    """All scores of a group are equal: nothing to train."""
    slow_verifiers: float = Field(default=0.0, ge=0, le=1)
    """An execution's scoring takes `slow_s` longer."""
    slow_s: float = Field(default=1800.0, ge=0)
    failed_moves: float = Field(default=0.0, ge=0, le=1)
    """A move ends in the role in which it began."""
    cell_life_h: float = Field(default=0.0, ge=0)
    """Mean time until a cell is lost (exponential); 0: never."""
    restart_s: float = Field(default=120.0, ge=0)
    """A lost cell is back after this."""


class PolicySettings(Section):
    """Settings of the scheduler (`schedule.plan.Policy`) that replace those of a policy's name; None: as named."""

    least: int | None = None
    most: int | None = None
    lockstep: bool | None = None
    when: When | None = None
    share: float | None = None
    gate: float | None = None
    streaming: bool | None = None


class Workload(Section):
    """All sections. `name` and `note` are for people."""

    name: str = ""
    note: str = ""
    cluster: Cluster = Cluster()
    rl: RL = RL()
    exec: Exec = Exec()
    rate: Rate = Rate()
    train: Train = Train()
    cost: Cost = Cost()
    failures: Failures = Failures()
    policy: PolicySettings = PolicySettings()


def read(source: str) -> dict[str, Any]:
    """The sections of a JSON file, or of a shipped workload by its name, not validated. Raises ConfigError."""
    path = Path(source)
    if not path.suffix and not path.exists():
        if source not in shipped():
            raise ConfigError(f"no workload '{source}': {nearest(source, shipped())}, or the path of a JSON file")
        text = files("qwengyre.sim").joinpath("workloads", f"{source}.json").read_text()
        return json.loads(text)
    try:
        values = json.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"no workload at {path}: give a JSON file, or one of {', '.join(shipped())}") from None
    except (ValueError, OSError) as error:
        raise ConfigError(f"{path} is not a JSON file: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} holds no object of sections (cluster, rl, exec, rate, train, cost)")
    return values


def shipped() -> list[str]:
    """Names of the workloads in the package."""
    folder = files("qwengyre.sim").joinpath("workloads")
    return sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json"))
