"""Run a task's tests/test.sh and read the reward that it leaves in /logs/verifier.

Its exit code and its printed text are never trusted. Tests whose paths cannot be fixed find them in TASK_WORKDIR,
TASK_TESTS and TASK_LOGS.
"""

import asyncio
import os
from pathlib import Path

from qwengyre.execution.sandboxes.base import Box, Exit
from qwengyre.execution.verifiers.base import Grade
from qwengyre.execution.verifiers.reward import NoReward, read
from qwengyre.types import Query

TESTS = "/tests"
LOGS = "/logs"


class HarborVerifier:
    """The verifier of the Harbor task format."""

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
        try:
            score, detail = await asyncio.to_thread(read, logs / "verifier")
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
