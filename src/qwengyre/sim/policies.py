"""From a workload and the name of a policy to the scheduler's plan."""

from dataclasses import replace

from qwengyre.schedule.plan import Plan, Policy
from qwengyre.sim.workload import Workload


def plan_of(workload: Workload, kind: str, training: int = 1) -> Plan:
    """The plan of a run. `training` = a, for `async`. Raises ConfigError."""
    rl, cluster = workload.rl, workload.cluster
    settings = {name: value for name, value in workload.policy.model_dump().items() if value is not None}
    return Plan(
        cells=cluster.cells,
        standalone=cluster.standalone,
        capacity=cluster.slots_per_cell,
        groups_per_step=rl.groups_per_step,
        group_size=rl.execs_per_group,
        steps=rl.steps,
        mu=rl.mu,
        phi=rl.phi,
        slack=rl.stale_slack,
        policy=replace(Policy.named(kind, training), **settings),
    )
