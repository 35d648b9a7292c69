"""One execution from start to settlement: run the harness, freeze its work, grade a copy.

    run -> Ending          the sandbox is stopped on return
    freeze -> hash         can be called again; so can settle, on the frozen work, after a restart
    settle -> Settlement

It decides nothing: which execution runs, when, and what a score is worth is told or asked elsewhere.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from qwengyre.errors import RunError
from qwengyre.execution.harnesses.base import Door, Harness, Launch
from qwengyre.execution.sandboxes.base import HOME, HOST, Box, BoxSpec, Exit, Sandbox
from qwengyre.execution.scoring import score, without_grading
from qwengyre.execution.verifiers.base import LOGS, TESTS, Grade
from qwengyre.execution.verifiers.build import Verifiers
from qwengyre.execution.workplace import GradingCopy, Workplace
from qwengyre.types import Ending, Limits, Query, Settlement, Verdict

QueuedSeconds = Callable[[], Awaitable[float]]
_SHORTEST_WAIT_S = 0.25


@dataclass
class _Live:
    box: Box
    closed: asyncio.Event = field(default_factory=asyncio.Event)


class Runner:
    """The executions of one box of the cluster. All methods belong to one event loop; blocking work runs in threads."""

    def __init__(  # noqa: PLR0913  (the parts of an execution, each passed in)
        self,
        *,
        run_id: str,
        folder: Path,
        scratch: Path,
        harness: Harness,
        sandbox: Sandbox,
        images: dict[str, str],
        retries: int,
        concurrent_verifiers: int,
        model: str,
        verifier: str = "task",
    ):
        """`folder` holds `executions/<id>`s and is kept; `scratch` is emptied as they end. Touches nothing yet.

        `verifier`: `task` (what each task says), or one for all as `package.module:Class`.
        """
        self.run_id = run_id
        self._folder, self._scratch, self._model = folder, scratch, model
        self._harness, self._sandbox, self._images = harness, sandbox, images
        self._verifiers = Verifiers(scratch, verifier)
        self._retries, self._turn = retries, asyncio.Semaphore(concurrent_verifiers)
        self._live: dict[str, _Live] = {}
        self._killed: set[str] = set()
        self._stopping = False

    async def run(self, execution: str, query: Query, *, token: str, socket: Path, queued_s: QueuedSeconds) -> Ending:
        """Run the harness to its end; everything in its sandbox is dead on return.

        The agent's time is active time: at its end `queued_s()` is asked for the seconds that its calls have been
        queued so far, and the time is extended by them. `limits.overall_s` is wall time.
        """
        place = self._place(execution, query)
        try:
            await asyncio.to_thread(place.prepare)
            if not self._root(query):
                reason = f"image '{query.image}' is not in [sandbox.images]"
                return await self._ended(place, Ending.NOTHING_TO_ASSESS, reason)
            async with self._open(execution, self._spec(execution, query, place, socket)) as box:
                door = Door(f"{box.url}/x/{token}/v1", token, self._model, box.path(query.workdir), box.path(HOME))
                launch = self._harness.launch(query, door)
                await asyncio.to_thread(place.write_home, launch.files)
                ending, reason, end = await _harness(box, launch, query.limits, queued_s, place.log)
        except OSError as error:  # a full disk, a control group that cannot be made: this execution's end only
            return await self._ended(place, Ending.LOST, f"no sandbox: {error}")
        return await self._ended(place, ending, reason, end)

    async def freeze(self, execution: str, query: Query) -> str:
        """Freeze what the harness left: `work/`, `diff` and the SHA-256 that this returns. Again: the same hash.

        Raises RunError when there is nothing to freeze (the scratch folder was lost).
        """
        return await asyncio.to_thread(self._place(execution, query).freeze)

    async def settle(self, execution: str, query: Query, ending: Ending) -> Settlement:
        """Grade the frozen work (frozen now if it is not), with retries. Can be repeated: it starts over.

        Raises RunError when `stop` came first: it is to be settled later.
        """
        place = self._place(execution, query)
        notes = await asyncio.to_thread(place.read, "ending.json")
        settled = without_grading(ending, notes.get("reason", ""))
        if settled is not None:
            await asyncio.to_thread(place.clear)
            return settled
        try:
            work = await self.freeze(execution, query)
        except (RunError, OSError) as error:  # a full disk, say
            return Settlement(Verdict.DROPPED, reason=str(error))

        async def attempt(number: int) -> Grade:
            async with self._turn:
                return await self._grade(execution, query, number, work)

        settlement = await score(attempt, work=work, retries=self._retries)
        if settlement.verdict is Verdict.DROPPED and self._stopping:
            raise RunError(f"{execution}: its box was stopped before it was settled")
        killed = settlement.verdict is Verdict.DROPPED and execution in self._killed
        return Settlement(Verdict.DROPPED, reason="killed", work=work) if killed else settlement

    async def kill(self, execution: str) -> None:
        """End whatever of it lives. Its `run` returns LOST; its `settle` drops it. Idempotent."""
        self._killed.add(execution)
        live = self._live.get(execution)
        if live is not None:
            await live.box.stop()
            await live.closed.wait()

    async def stop(self) -> None:
        """End everything that lives, and start nothing more."""
        self._stopping = True
        await asyncio.gather(*(self.kill(execution) for execution in list(self._live)))

    async def _grade(self, execution: str, query: Query, number: int, work: str) -> Grade:
        """One attempt in a fresh sandbox without a way out. Whatever goes wrong is a failed evaluation, with why."""
        place, started = self._place(execution, query), time.time()
        try:
            copy, frozen = await asyncio.to_thread(place.grading_copy, number)
            try:
                if frozen.hash == work:
                    grade = await self._verify(execution, query, copy, number)
                else:
                    differs = f"hash {frozen.hash[:12]}, not {work[:12]}"
                    grade = Grade(None, f"the frozen work in {place.work} has changed: {differs}")
            finally:
                await asyncio.to_thread(copy.clear)
            notes = {"work": work, "seconds": round(time.time() - started, 3), **asdict(grade)}
            await asyncio.to_thread(place.write, f"verifier/{number}/grade.json", notes)
        except OSError as error:
            return Grade(None, f"no sandbox: {error}")
        return grade

    async def _verify(self, execution: str, query: Query, copy: GradingCopy, number: int) -> Grade:
        """The verifier in its box."""
        verifier = self._verifiers.of(query)
        spec = BoxSpec(
            name=f"{execution}-v{number}",
            root=self._root(query),
            workdir=query.workdir,
            workspace=copy.workspace,
            limits=query.limits,
            read_only={TESTS: query.tests, **await asyncio.to_thread(verifier.mounts, query)},
            writable={LOGS: str(copy.logs)},
        )
        async with self._open(execution, spec) as box:
            try:
                return await verifier.grade(query, box, copy.logs)
            except OSError:
                raise
            except Exception as error:  # a verifier of the user's own
                return Grade(None, f"the verifier raised {type(error).__name__}: {str(error)[:200]}")

    def _spec(self, execution: str, query: Query, place: Workplace, socket: Path) -> BoxSpec:
        """The box of the harness: its own tools, a home, the way to the gateway."""
        return BoxSpec(
            name=execution,
            root=self._root(query),
            workdir=query.workdir,
            workspace=place.workspace,
            limits=query.limits,
            read_only=self._harness.mounts,
            writable={HOME: str(place.home)},
            env=query.env,
            socket=socket,
        )

    @contextlib.asynccontextmanager
    async def _open(self, execution: str, spec: BoxSpec) -> AsyncIterator[Box]:
        """A box that `kill` can find; one that was killed meanwhile runs nothing."""
        live: _Live | None = None
        try:
            async with self._sandbox.open(spec) as box:
                live = self._live[execution] = _Live(box)
                if self._stopping or execution in self._killed:
                    await box.stop()
                yield box
        finally:
            if live is not None:
                del self._live[execution]
                live.closed.set()

    async def _ended(self, place: Workplace, ending: Ending, reason: str, end: Exit | None = None) -> Ending:
        notes = {"ending": ending.value, "reason": reason, **({"exit": asdict(end)} if end else {})}
        await asyncio.to_thread(place.write, "ending.json", notes)
        return ending

    def _place(self, execution: str, query: Query) -> Workplace:
        root = self._root(query) or HOST
        return Workplace(execution, folder=self._folder, scratch=self._scratch, query=query, root=root)

    def _root(self, query: Query) -> str:
        """`host`, a root folder, or "" when the image means nothing here. A task without an image runs on `host`."""
        return self._images.get(query.image, "") if query.image else self._images.get("", HOST)


async def _harness(
    box: Box, launch: Launch, limits: Limits, queued_s: QueuedSeconds, log: Path
) -> tuple[Ending, str, Exit]:
    """Run the harness until it ends or its time is over. Ends when nothing of it lives."""
    loop = asyncio.get_running_loop()
    start, queued, ending = loop.time(), 0.0, Ending.LOST
    job = asyncio.ensure_future(box.run([box.path(word) for word in launch.argv], env=launch.env, log=log))
    try:
        while not job.done():
            elapsed = loop.time() - start
            active_left, overall_left = limits.agent_s - (elapsed - queued), limits.overall_s - elapsed
            if min(active_left, overall_left) <= 0:
                ending = Ending.OVERALL_TIMEOUT if overall_left <= 0 else Ending.HARNESS_TIMEOUT
                break
            await asyncio.wait({job}, timeout=max(_SHORTEST_WAIT_S, min(active_left, overall_left)))
            if not job.done():
                with contextlib.suppress(TimeoutError):
                    queued = await asyncio.wait_for(queued_s(), max(_SHORTEST_WAIT_S, overall_left))
    finally:
        await box.stop()
    end = await job
    return _classify(end, ending, limits)


def _classify(end: Exit, ending: Ending, limits: Limits) -> tuple[Ending, str, Exit]:
    """(ending, reason, exit). `ending` is why we stopped it, LOST when we did not."""
    if end.stopped:
        reasons = {
            Ending.HARNESS_TIMEOUT: f"active for more than {limits.agent_s:g} s",
            Ending.OVERALL_TIMEOUT: f"took more than {limits.overall_s:g} s in all",
        }
        return ending, reasons.get(ending, "killed"), end
    if end.failed:
        return Ending.LOST, end.failed, end
    if end.over_disk:
        return Ending.HARNESS_CRASH, f"wrote more than {limits.disk_mb} MB, or too many or too deep files", end
    if end.code == 0:
        return Ending.FINISHED, "", end
    memory = f", killed for memory above {limits.memory_mb} MB" if end.out_of_memory else ""
    return Ending.HARNESS_CRASH, f"exit code {end.code}{memory}", end
