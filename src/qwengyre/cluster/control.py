"""Control: the run itself. It owns the loop, the journal, the ledger, scores, metrics and the recovery of a resume.

A plain class; `ray.py` makes it an actor with one event loop. `run` is called once and returns when the run is over.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qwengyre import profiles
from qwengyre.cluster.cell import draw_incarnation
from qwengyre.cluster.checkpoints import Checkpoint, newest, prune
from qwengyre.cluster.crew import Hands, run_clock
from qwengyre.cluster.evaluations import Evaluations, Slots, held_out
from qwengyre.cluster.folder import lines, mend
from qwengyre.cluster.groups import Groups
from qwengyre.cluster.journal import Journal, read, replay
from qwengyre.cluster.prepare import eval_tasks_of, evaluates, plan_of, tasks_of
from qwengyre.cluster.record import SCHEMA_VERSION, MoveRecord, StepRecord, sum_moves
from qwengyre.cluster.recovery import Past, again, attach, begin, past, return_to
from qwengyre.cluster.supervise import GoBackError, Supervisor
from qwengyre.cluster.world import Cluster
from qwengyre.config import Config
from qwengyre.loop import run
from qwengyre.schedule import events as ev
from qwengyre.schedule.actions import Action, Evaluate, Evaluated, Void
from qwengyre.schedule.doing import doing
from qwengyre.schedule.state import State
from qwengyre.schedule.step import start, step
from qwengyre.schedule.waiting import waiting
from qwengyre.trainer.rate import rate
from qwengyre.trajectory.pack import Recipe
from qwengyre.trajectory.roles import Table
from qwengyre.types import Ending, ExecutionId, Query, Settlement


@dataclass(frozen=True)
class ControlSpec:
    """The arguments of control's constructor."""

    config: Config
    run_dir: Path
    max_sequence: int
    tree_depth: int
    """Longest sequence that can share a prefix with others in training; 0: none."""
    machine: dict[str, Any]
    """What the driver knows of itself and of Ray, for `processes.json`."""


class Control:
    """start_run -> status* -> the result of `run`."""

    def __init__(self, spec: ControlSpec) -> None:
        self._spec = spec
        self.incarnation = draw_incarnation(spec.run_dir, "control")
        self._state: State | None = None
        self._world: Cluster | None = None
        self._supervisor: Supervisor | None = None
        self._running: asyncio.Task[dict[str, Any]] | None = None
        self._rows: list[dict[str, Any]] = []
        self._saved: list[dict[str, Any]] = []
        """Checkpoints of this process: step, version, seconds, bytes."""
        for name in ("scores.jsonl", "metrics.jsonl", "moves.jsonl"):
            mend(spec.run_dir / name)
        self._scores = (spec.run_dir / "scores.jsonl").open("a")
        self._moves = lines(spec.run_dir / "moves.jsonl")
        config, folder = spec.config, spec.run_dir
        self._tasks = tasks_of(config, folder / "tasks")
        recipe = Recipe(
            seed=config.run.seed,
            jmax=config.rl.jmax,
            microstep_tokens=config.trainer.microstep_tokens,
            max_sequence=spec.max_sequence,
            std=config.rl.advantage_std,
            tree_depth=spec.tree_depth,
            shares=bool(config.trainer.kl_coefficient or config.trainer.entropy_coefficient),
        )
        table = Table.of(profiles.told(config.harness.kind))
        self._groups = Groups(folder / "calls", config.rl.group_size, recipe, table)
        self._evaluations = Evaluations(folder / "evals.jsonl", self._slots(folder / "tasks"))
        self._void: dict[int, str] = {}
        self._endings: Counter[str] = Counter()
        self._notes: dict[ExecutionId, tuple[Ending, Settlement]] = {}

    def learning_rate(self, step: int) -> float:
        """As the schedule says; the same after a resume."""
        config, trainer = self._spec.config, self._spec.config.trainer
        return rate(step, config.run.steps, trainer.learning_rate, trainer.schedule, trainer.warmup_steps)

    async def run(self, hands: Hands) -> dict[str, Any]:
        """The whole run, or the rest of one whose journal lies in the run folder: after the death of control or of the
        command. Asked again, it goes on. Returns the content of `summary.json`. Raises RunError, JournalError."""
        if self._running is None:
            self._running = asyncio.create_task(self._run(hands))
        return await asyncio.shield(self._running)

    async def _run(self, hands: Hands) -> dict[str, Any]:
        spec, plan = self._spec, plan_of(self._spec.config)
        path = spec.run_dir / "journal.jsonl"
        past = self._recall(path) if path.exists() else None
        self._state = past.state if past else start(plan)
        if self._state.done:
            return self.summary()
        self._journal = Journal(path, plan)
        world = Cluster(hands, self._groups, self, run_clock(self._state.at))
        self._world, self._supervisor = world, Supervisor(world, spec.run_dir, spec.machine)
        world.lost = self._supervisor.give_up
        try:
            actions = await self._begin(world, self._supervisor, past)
            while True:
                try:
                    self._state = await run(self._state, actions, world, self)
                    return self.summary()
                except GoBackError:
                    await self._supervisor.close_cells()
                    await world.withdraw()
                    actions = self._step(await self._return(world, self._supervisor))
        finally:
            await self._supervisor.close()
            await world.stop()
            self._journal.close()

    def append(self, event: ev.Event, actions: Sequence[Action], state: State) -> None:
        """The loop's journal: on disk first, then visible to `status`."""
        self._journal.append(event, actions)
        self._state = state
        self._fold(event, actions)
        if isinstance(event, ev.Settled):
            self._score(event)
        if isinstance(event, ev.Published) and self._supervisor is not None:
            self._supervisor.published()

    def _fold(self, event: ev.Event, actions: Sequence[Action]) -> None:
        """What control itself keeps of the journal; also run over a recovered one."""
        if isinstance(event, ev.Settled):
            (self._groups if event.execution.evaluation < 0 else self._evaluations).settle(event)
        if isinstance(event, ev.Ended):
            self._endings[str(event.ending)] += 1
        if isinstance(event, ev.RolledBack):
            self._evaluations.forget_after(event.step)
        for action in actions:
            match action:
                case Void():
                    self._void[action.group] = action.reason
                case Evaluate():
                    self._evaluations.begin(action, event.at)
                case Evaluated():
                    self._evaluations.end(action.evaluation, event.at)
                case _:
                    pass

    async def engine_lost(self, cell: int, incarnation: int, reason: str) -> None:
        """A gateway could not reach an engine."""
        if self._supervisor is not None:
            await self._supervisor.engine_lost(cell, incarnation, reason)

    async def status(self) -> dict[str, Any]:
        """What the progress view and the watchdog read."""
        state, world = self._state, self._world
        if state is None or world is None or not world.crew.live:
            away = world.crew.waits if world else []
            waits = away or ["control waits for the cells to load the model"]
            return {"phase": "starting", "alive": world.reported if world else 0, "waiting": waits}
        tokens, calls = await world.pulse()
        return {
            "phase": "done" if state.done else "running",
            "alive": world.reported + sum(tokens.values()),
            "tokens": tokens,
            "calls": calls,
            "at": world.crew.clock(),
            "step": state.finished_steps,
            "steps": state.plan.steps,
            "version": state.version,
            "doing": [str(word) for word in doing(state)],
            "roles": {str(cell): str(role) for cell, role in state.roles.items()},
            "dispatched": state.ended + state.waterlevel,
            "placed": state.ended + state.waterlevel - state.queued,
            "ended": state.ended,
            "evaluation": self._evaluating(state),
            "evaluations": self._evaluations.heads,
            "to_evaluate": state.plan.evaluations.left(state.step, state.plan.steps, state.evaluated),
            "endings": dict(self._endings),
            "backlog": [len(world.training.ledger.pending), len(world.training.ledger.claimed)],
            "rows": self._rows,
            "moves": self._moves,
            "checkpoints": self._saved,
            "deaths": self._supervisor.deaths if self._supervisor else [],
            "phases": dict(world.moves.now),
            "waiting": world.crew.waits + waiting(state),
        }

    def summary(self) -> dict[str, Any]:
        """What `summary.json` holds."""
        assert self._state is not None
        state = self._state
        return {
            "schema_version": SCHEMA_VERSION,
            "steps": state.finished_steps,
            "version": state.version,
            "executions": {"dispatched": state.dispatched, "ended": state.ended} | self._groups.verdicts(),
            "groups": {"dispatched": state.next_group, "void": {str(g): why for g, why in self._void.items()}},
            "reward": [row["reward/mean"] for row in self._rows],
            "grad_norm": [row["actor/grad_norm"] for row in self._rows],
            "held_out": held_out(self._evaluations.rows, state.plan.steps),
            "moves": sum_moves(self._moves),
            "seconds": round(state.at, 2),
        }

    def query_of(self, execution: ExecutionId) -> Query:
        """The task of a group: the set's own order, or a seeded shuffle of each pass over it. Of an evaluation: its
        slot's."""
        if execution.evaluation >= 0:
            return self._evaluations.slots.query(execution)
        size, group = len(self._tasks), execution.group
        index = group % size
        if self._spec.config.tasks.shuffle:
            import numpy as np

            order = np.random.default_rng((self._spec.config.run.seed, group // size)).permutation(size)
            index = int(order[index])
        return self._tasks[index]

    def temperature_of(self, execution: ExecutionId) -> float:
        """The run's, or what the execution's evaluation says."""
        if execution.evaluation < 0:
            return self._spec.config.rl.temperature
        slots = self._evaluations.slots
        return 0.0 if slots.is_greedy(execution) else slots.temperature

    def _slots(self, tasks: Path) -> Slots:
        config = self._spec.config
        measured, set_ = config.eval, eval_tasks_of(config, tasks) if evaluates(config) else ()
        temperature = config.rl.temperature if measured.temperature == "auto" else measured.temperature
        return Slots(set_, measured.samples, measured.greedy, temperature)

    @staticmethod
    def _evaluating(state: State) -> dict[str, int] | None:
        """The evaluation in progress, for the progress view."""
        now = state.evaluation
        return now and {"step": now.step, "settled": now.count - now.unsettled, "count": now.count}

    # --- beginning and recovery ------------------------------------------------------------------------------------

    def _recall(self, path: Path) -> Past | None:
        """What the journal says, folded again; None when the run had not begun."""
        scored = {line["execution"] for line in lines(self._spec.run_dir / "scores.jsonl")}
        entries = list(read(path))
        for entry in entries:
            self._fold(entry.event, entry.actions)
            if isinstance(entry.event, ev.Settled) and str(entry.event.execution) not in scored:
                self._score(entry.event)
        self._rows = lines(self._spec.run_dir / "metrics.jsonl")
        return past(replay(path), entries) if entries else None

    async def _begin(self, world: Cluster, supervisor: Supervisor, past: Past | None) -> Sequence[Action]:
        """Open gateway, box and cells, and feed the first events. Returns what is to be begun."""
        box = await supervisor.open()
        if past is None:
            return self._step(await begin(world, supervisor))
        begun = self._step(await attach(world, past, box))
        begun += self._step(await self._return(world, supervisor))
        assert self._state is not None
        return again(self._state, begun)

    async def _return(self, world: Cluster, supervisor: Supervisor) -> list[ev.Event]:
        """Back to the newest complete checkpoint. Steps after it are trained again: their metrics go."""
        assert self._state is not None
        checkpoint = newest(self._spec.run_dir)
        self._truncate_metrics(checkpoint.step if checkpoint else 0)
        return await return_to(world, supervisor, self._state, checkpoint)

    def _step(self, events: Sequence[ev.Event]) -> list[Action]:
        """Let the scheduler see these events now. Returns what it asks."""
        begun: list[Action] = []
        for event in events:
            assert self._state is not None
            state, actions = step(self._state, event)
            self.append(event, actions, state)
            begun += actions
        return begun

    def _truncate_metrics(self, finished: int) -> None:
        """Steps after the checkpoint are trained again: their lines go."""
        path = self._spec.run_dir / "metrics.jsonl"
        self._rows = [row for row in self._rows if row["step"] < finished]
        path.write_text("".join(json.dumps(row) + "\n" for row in self._rows))

    def born(self, group: int) -> int:
        """v_d of a group: steps contained in the weights it was dispatched with."""
        assert self._state is not None
        return self._state.groups[group].born

    # --- what is written down --------------------------------------------------------------------------------------

    def note(self, execution: ExecutionId, ending: Ending, settlement: Settlement) -> None:
        """Keep what the Settled event does not carry, until that event is in the journal."""
        self._notes[execution] = ending, settlement

    def _score(self, event: ev.Settled) -> None:
        """A line of `scores.jsonl`, after the journal's: a kill in between leaves a line to be made up, never two."""
        unknown = Settlement(event.verdict, event.score, reason="recovered from the journal")
        ending, settlement = self._notes.pop(event.execution, ("", unknown))
        line = {
            "schema_version": SCHEMA_VERSION,
            "execution": str(event.execution),
            "task": self.query_of(event.execution).name,
            "ending": str(ending),
            "verdict": str(settlement.verdict),
            "score": settlement.score,
            "reason": settlement.reason,
            "work": settlement.work,
            "detail": settlement.detail,
        }
        self._scores.write(json.dumps(line) + "\n")
        self._scores.flush()

    def closed(self, record: StepRecord) -> None:
        """A line of `metrics.jsonl`."""
        row = record.row()
        self._rows.append(row)
        with (self._spec.run_dir / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")

    def moved(self, record: MoveRecord) -> None:
        """A line of `moves.jsonl`."""
        row = record.row()
        self._moves.append(row)
        with (self._spec.run_dir / "moves.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")

    def checkpoint_for(self, version: int, steps: int) -> Checkpoint | None:
        """Due at every `checkpoint.every`-th publish, and at the last one."""
        bursts = -(-steps // self._spec.config.rl.mu)
        due = bursts % self._spec.config.checkpoint.every == 0 or steps >= self._spec.config.run.steps
        folder = self._spec.run_dir / "checkpoints" / f"step-{steps:06d}"
        return Checkpoint(folder, steps, version) if due else None

    def completed(self, checkpoint: Checkpoint, seconds: float) -> None:
        self._saved.append(checkpoint.complete(seconds))
        prune(self._spec.run_dir, self._spec.config.checkpoint.keep)
