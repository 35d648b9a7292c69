"""Run a task's tests/test.sh and read the reward, or the report of tests, that it leaves in /logs/verifier.

Its exit code and its printed text are never trusted. Tests whose paths cannot be fixed find them in TASK_WORKDIR,
TASK_TESTS and TASK_LOGS.
"""

import asyncio
import os
from pathlib import Path

from qwengyre.execution.sandboxes.base import Box, Exit
from qwengyre.execution.verifiers import ctrf, options, reward
from qwengyre.execution.verifiers.base import LOGS, TESTS, Grade
from qwengyre.execution.verifiers.files import NoReward
from qwengyre.types import Query


class ScriptVerifier:
    """The verifier of the Harbor task format: kinds `reward` and `ctrf`."""

    def mounts(self, query: Query) -> dict[str, str]:
        """Nothing more."""
        return {}

    async def grade(self, query: Query, box: Box, logs: Path) -> Grade:
        """See `Verifier.grade`."""
        script = f"{box.path(TESTS)}/test.sh"
        argv = [script] if os.access(Path(query.tests, "test.sh"), os.X_OK) else ["bash", script]
        env = {
            "TASK_WORKDIR": box.path(query.workdir),
            "TASK_TESTS": box.path(TESTS),
            "TASK_LOGS": f"{box.path(LOGS)}/verifier",
            **query.env,
            **query.verifier_env,
        }
        end = await box.run(argv, env=env, timeout_s=query.limits.verifier_s, log=logs.parent / "verifier.log")
        trouble = _trouble(end, query)
        if trouble:
            return Grade(None, trouble)
        wanted = options.of(query)
        try:
            if wanted.kind == "ctrf":
                score, detail = await asyncio.to_thread(ctrf.read, logs / "verifier", wanted.ids)
            else:
                score, detail = await asyncio.to_thread(reward.read, logs / "verifier")
        except NoReward as error:
            memory = f" (killed for memory above {query.limits.memory_mb} MB)" if end.out_of_memory else ""
            return Grade(None, f"{error}{memory}")
        return Grade(score, detail=detail)


def _trouble(end: Exit, query: Query) -> str:
    """Why the verifier's end says nothing, "" when its reward may be read."""
    if end.failed:
        return end.failed
    if end.stopped:
        return "the verifier was stopped"
    if end.timed_out:
        return f"the verifier ran longer than {query.limits.verifier_s:g} s"
    return f"the verifier wrote more than {query.limits.disk_mb} MB" if end.over_disk else ""
