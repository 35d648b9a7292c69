"""Control: the run itself. It owns the loop, the journal, the ledger, scores, metrics and the recovery of a resume.

A plain class; `ray.py` makes it an actor with one event loop. `run` is called once and returns when the run is over.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qwengyre.cluster.checkpoints import Checkpoint, newest, prune
from qwengyre.cluster.crew import Hands, run_clock
from qwengyre.cluster.folder import lines, mend
from qwengyre.cluster.groups import Groups
from qwengyre.cluster.journal import Journal, read, replay
from qwengyre.cluster.prepare import plan_of, tasks_of
from qwengyre.cluster.record import SCHEMA_VERSION, MoveRecord, StepRecord, sum_moves
from qwengyre.cluster.world import Cluster
from qwengyre.config import Config
from qwengyre.loop import run
from qwengyre.schedule import events as ev
from qwengyre.schedule.actions import Action, Void
from qwengyre.schedule.state import State
from qwengyre.schedule.step import asked, open_executions, start, step
from qwengyre.schedule.waiting import waiting
from qwengyre.trajectory.pack import Recipe
from qwengyre.types import Ending, ExecutionId, Query, Settlement, Verdict


@dataclass(frozen=True)
class ControlSpec:
    """The arguments of control's constructor."""

    config: Config
    run_dir: Path
    resume: bool
    max_sequence: int


class Control:
    """start_run -> status* -> the result of `run`."""

    def __init__(self, spec: ControlSpec) -> None:
        self._spec = spec
        self._state: State | None = None
        self._world: Cluster | None = None
        self._rows: list[dict[str, Any]] = []
        for name in ("scores.jsonl", "metrics.jsonl", "moves.jsonl"):
            mend(spec.run_dir / name)
        self._scores = (spec.run_dir / "scores.jsonl").open("a")
        self._moves = lines(spec.run_dir / "moves.jsonl")
        config, folder = spec.config, spec.run_dir
        self._tasks = tasks_of(config, folder / "tasks")
        recipe = Recipe(config.run.seed, config.rl.jmax, config.trainer.microstep_tokens, spec.max_sequence)
        self._groups = Groups(folder / "calls", config.rl.group_size, recipe)
        self._void: dict[int, str] = {}
        self._notes: dict[ExecutionId, tuple[Ending, Settlement]] = {}

    @property
    def learning_rate(self) -> float:
        """Constant over the run."""
        return self._spec.config.trainer.learning_rate

    def checkpoint(self) -> Checkpoint | None:
        """The newest complete checkpoint, from which a resume starts (None: the model as given)."""
        return newest(self._spec.run_dir) if self._spec.resume else None

    async def run(self, hands: Hands) -> dict[str, Any]:
        """The whole run. Returns the content of `summary.json`. Raises RunError, JournalError."""
        spec, config = self._spec, self._spec.config
        path = spec.run_dir / "journal.jsonl"
        recovered = self._recover(path) if spec.resume and path.exists() else None
        self._state = recovered or start(plan_of(config))
        if self._state.done:
            return self.summary()
        self._journal = Journal(path, plan_of(config))
        clock = run_clock(recovered.at if recovered else 0.0)
        self._world = world = Cluster(hands, self._groups, self, clock)
        try:
            actions = await self._begin(world, recovered)
            self._state = await run(self._state, actions, world, self)
        finally:
            await world.stop()
            self._journal.close()
        return self.summary()

    def append(self, event: ev.Event, actions: Sequence[Action], state: State) -> None:
        """The loop's journal: on disk first, then visible to `status`."""
        self._journal.append(event, actions)
        self._state = state
        self._fold(event, actions)
        if isinstance(event, ev.Settled):
            self._score(event)

    def _fold(self, event: ev.Event, actions: Sequence[Action]) -> None:
        """What control itself keeps of the journal; also run over a recovered one."""
        if isinstance(event, ev.Settled):
            self._groups.settle(event)
        self._void |= {a.group: a.reason for a in actions if isinstance(a, Void)}

    async def engine_lost(self, cell: int, incarnation: int, reason: str) -> None:
        """A gateway could not reach an engine."""
        assert self._world is not None
        self._world.engine_lost(cell, incarnation, reason)

    async def status(self) -> dict[str, Any]:
        """What the progress view and the watchdog read."""
        state, world = self._state, self._world
        if state is None or world is None or not world.crew.live:
            return {"phase": "starting", "alive": 0, "waiting": ["control waits for the cells to load the model"]}
        tokens, calls = await world.pulse()
        return {
            "phase": "done" if state.done else "running",
            "alive": world.reported + tokens,
            "calls": calls,
            "at": world.crew.clock(),
            "step": state.finished_steps,
            "steps": state.plan.steps,
            "version": state.version,
            "roles": {str(cell): str(role) for cell, role in state.roles.items()},
            "dispatched": state.dispatched,
            "placed": state.started,
            "ended": state.ended,
            "backlog": [len(world.training.ledger.pending), len(world.training.ledger.claimed)],
            "rows": self._rows,
            "moves": self._moves,
            "phases": dict(world.moves.now),
            "waiting": waiting(state),
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
            "moves": sum_moves(self._moves),
            "seconds": round(state.at, 2),
        }

    def query_of(self, group: int) -> Query:
        """The task of a group: the set's own order, or a seeded shuffle of each pass over it."""
        size = len(self._tasks)
        index = group % size
        if self._spec.config.tasks.shuffle:
            import numpy as np

            order = np.random.default_rng((self._spec.config.run.seed, group // size)).permutation(size)
            index = int(order[index])
        return self._tasks[index]

    # --- beginning and recovery ------------------------------------------------------------------------------------

    def _recover(self, path: Path) -> State:
        """What the journal says, folded again."""
        scored = {line["execution"] for line in lines(self._spec.run_dir / "scores.jsonl")}
        for entry in read(path):
            self._fold(entry.event, entry.actions)
            if isinstance(entry.event, ev.Settled) and str(entry.event.execution) not in scored:
                self._score(entry.event)
        self._rows = lines(self._spec.run_dir / "metrics.jsonl")
        return replay(path)

    async def _begin(self, world: Cluster, recovered: State | None) -> Sequence[Action]:
        """Start the cells and feed the first events; after a crash first say what was lost and roll back."""
        checkpoint = self.checkpoint()
        first: list[ev.Event] = []
        if recovered is None:
            first.append(ev.Started(world.crew.clock()))
        else:
            first += await self._losses(recovered, world)
            finished = checkpoint.step if checkpoint else 0
            world.crew.version = recovered.next_version
            first.append(ev.RolledBack(world.crew.clock(), finished, world.crew.version))
            self._truncate_metrics(finished)
        folder = checkpoint.folder if checkpoint else None
        reports = await asyncio.gather(
            *(cell.start.remote(world.crew.version, folder) for cell in world.crew.hands.cells)
        )
        for report in reports:
            await world.moves.join(report)
            first.append(ev.CellReady(world.crew.clock(), report.cell, report.incarnation, report.capacity))
        begun: list[Action] = []
        for event in first:
            assert self._state is not None
            state, actions = step(self._state, event)
            self.append(event, actions, state)
            begun += actions
        assert self._state is not None
        return begun if recovered is None else asked(self._state)

    async def _losses(self, recovered: State, world: Cluster) -> list[ev.Event]:
        """Executions that were open when the driver died: reported lost, dropped with a reason, never run twice."""
        running, unsettled = open_executions(recovered)
        events: list[ev.Event] = []
        for execution in (*running, *unsettled):
            await world.crew.hands.gateway.seal.remote(str(execution))
            if execution in running:
                events.append(ev.Ended(world.crew.clock(), execution, Ending.LOST))
            settlement = Settlement(Verdict.DROPPED, reason="the run was interrupted while it was open")
            self.note(execution, Ending.LOST, settlement)
            events.append(ev.Settled(world.crew.clock(), execution, settlement.verdict, 0.0))
        return events

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
            "task": self.query_of(event.execution.group).name,
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

    def completed(self, checkpoint: Checkpoint) -> None:
        checkpoint.complete()
        prune(self._spec.run_dir, self._spec.config.checkpoint.keep)
