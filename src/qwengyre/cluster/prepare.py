"""Everything that can be found wrong before a run starts, in the order of what it costs to find."""

import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qwengyre.cluster.foresee import check_installed, check_kinds, unmapped, unseen
from qwengyre.config import Config
from qwengyre.errors import ConfigError, MachineError
from qwengyre.execution.sandboxes.base import Enforcement
from qwengyre.execution.tasksets import build as tasksets
from qwengyre.execution.tasksets.base import TaskSet
from qwengyre.schedule.plan import Evaluations, Plan, Policy
from qwengyre.trainer.lora import Lora
from qwengyre.types import Limits, Phase, Progress


@dataclass(frozen=True)
class Prepared:
    """What a run needs to know of its model and its machine."""

    model: Path
    """A local HF folder."""
    window: int
    """min(model, trainer.max_sequence): an untrainable trajectory cannot exist."""
    tree_depth: int
    """Longest sequence that can share a prefix with others in training; 0: none."""
    eos_ids: tuple[int, ...]
    enforcement: str
    """Which sandbox limits hold here, and how."""
    num_tasks: int


def prepare(config: Config, scratch: Path, progress: Progress) -> Prepared:
    """Check and fetch. Raises ConfigError or MachineError (exit 2). `scratch`: a folder for generated tasks."""
    from qwengyre.execution.harnesses import build as harnesses
    from qwengyre.execution.sandboxes import build as sandboxes
    from qwengyre.execution.verifiers import build as verifiers
    from qwengyre.model import load
    from qwengyre.trainer import lora
    from qwengyre.trainer.shape import tree_depth

    plan_of(config)
    check_installed()
    check_kinds(config)
    _check_port(config.gateway.port)
    sandboxes.check_images(config.sandbox.images)
    verifiers.check(config.scoring.verifier)
    enforcement = sandboxes.build(config.sandbox.kind, run_id="check", scratch=scratch).check()
    tasks = tasks_of(config, scratch)
    for warning in (unmapped(tasks, config.sandbox.images), unseen(config.harness, config.sandbox)):
        if warning:
            progress(Phase(f"WARNING: {warning}", over=True))
    if evaluates(config):
        eval_tasks_of(config, scratch)
    needs = harnesses.needs(config.harness.kind)
    _check_needs(config, needs.memory_mb, needs.pids)
    harnesses.ready(config.harness.kind, config.harness.args, progress)
    harnesses.build(**harness_of(config))
    model = load.resolve(config.model.name, progress=progress)
    if config.run.steps:
        lora.check(lora_of(config), model)
    if config.model.name not in load.BUILT or config.model.chat_template:  # the built ones are known to be complete
        load.tokenizer(model, config.model.chat_template)
    window = min(load.window(model), config.trainer.max_sequence)
    if config.rl.max_tokens >= window:
        raise ConfigError(
            f"rl.max_tokens={config.rl.max_tokens} but the window is {window} tokens "
            "(the least of the model's and trainer.max_sequence): lower the first or raise the second"
        )
    if window < needs.window:
        wants = f"harness {config.harness.kind} alone fills a window of about {needs.window} tokens"
        progress(Phase(f"WARNING: {wants}, and this one has {window}: raise trainer.max_sequence", over=True))
    depth = tree_depth(load.config_of(model)) if config.trainer.packing == "auto" else 0
    return Prepared(model, window, depth, load.eos_ids(model), _said(enforcement), len(tasks))


def plan_of(config: Config) -> Plan:
    """The scheduler's plan: the paper's letters, and what the policy's keys set. Raises ConfigError."""
    measured = config.eval
    evaluations = Evaluations(
        count=measured.count * (measured.samples + measured.greedy),
        every=measured.every,
        before=measured.before,
        after=measured.after,
    )
    if evaluates(config) and not evaluations.count:
        raise ConfigError("eval.samples=0 and eval.greedy=false: an evaluation needs one of them")
    rl, cells, policy = config.rl, config.cells, Policy.named(config.policy.kind, config.policy.training)
    if config.policy.streaming != "auto":
        policy = replace(policy, streaming=config.policy.streaming)
    return Plan(
        cells=cells.count,
        standalone=cells.standalone,
        groups_per_step=rl.groups_per_step,
        group_size=rl.group_size,
        steps=config.run.steps,
        mu=rl.mu,
        phi=rl.phi,
        slack=rl.slack,
        capacity=cells.executions,
        policy=policy,
        evaluations=evaluations if evaluates(config) else Evaluations(),
    )


def tasks_of(config: Config, folder: Path) -> TaskSet:
    """The run's task set; generators write below `folder`. Raises ConfigError, TaskError."""
    return tasksets.build(
        config.tasks.kind,
        path=config.tasks.path,
        count=config.tasks.count,
        split=config.tasks.split,
        seed=config.run.seed,
        folder=folder,
        limits=limits_of(config),
    )


def evaluates(config: Config) -> bool:
    """Does this run evaluate at all?"""
    return config.eval.before or config.eval.after or config.eval.every > 0


def eval_tasks_of(config: Config, folder: Path) -> TaskSet:
    """The tasks of the run's evaluations: exactly `eval.count`. Raises ConfigError, TaskError."""
    measured = config.eval
    tasks = tasksets.build(
        measured.kind or config.tasks.kind,
        path=measured.path or config.tasks.path,
        count=measured.count,
        split=measured.split,
        seed=config.run.seed,
        folder=folder,
        limits=limits_of(config),
    )
    if len(tasks) < measured.count:
        raise ConfigError(f"eval.count={measured.count} but there are {len(tasks)} tasks: lower it")
    return tasks


def lora_of(config: Config) -> Lora:
    """The adapters that are trained, if any."""
    trainer = config.trainer
    return Lora(trainer.lora_rank, trainer.lora_alpha, trainer.lora_targets, config.run.seed)


def harness_of(config: Config) -> dict[str, Any]:
    """The keys of `[harness]` that make a harness; the rest are limits."""
    return config.harness.model_dump(exclude={"timeout_s", "overall_timeout_s"})


def limits_of(config: Config) -> Limits:
    """The most that a task may ask for."""
    harness, sandbox = config.harness, config.sandbox
    return Limits(
        agent_s=harness.timeout_s,
        overall_s=harness.overall_timeout_s,
        verifier_s=config.scoring.timeout_s,
        memory_mb=sandbox.memory_mb,
        pids=sandbox.pids,
        disk_mb=sandbox.disk_mb,
    )


def _check_needs(config: Config, memory_mb: int, pids: int) -> None:
    for key, given, needed in (("memory_mb", config.sandbox.memory_mb, memory_mb), ("pids", config.sandbox.pids, pids)):
        if given < needed:
            raise ConfigError(f"sandbox.{key}={given}: harness {config.harness.kind} needs at least {needed}")


def _said(enforcement: Enforcement) -> str:
    """Which limits hold, and by what, in one line."""
    limits = ("memory", "pids", "disk", "time", "network")
    warning = f"; WARNING: {enforcement.warning}" if enforcement.warning else ""
    return ", ".join(f"{name} by {getattr(enforcement, name)}" for name in limits) + warning


def _check_port(port: int) -> None:
    """A fixed port must be free now; the gateway says the same if it is taken meanwhile."""
    if port == 0:
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise MachineError(
                f"gateway.port={port} cannot be used ({error.strerror}): give another, or 0 for a free one"
            ) from None
