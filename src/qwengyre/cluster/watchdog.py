"""What ends a run that cannot go on. It belongs to the driver, outside control: nothing in the run can silence it."""

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from qwengyre.config import Config
from qwengyre.errors import RunError

MOST_DEATHS = 8
"""A control that dies so often before a step more is finished ends the run."""
GCS_S = 20.0
"""A GCS that does not answer for so long is lost: well before Ray's own 60 s, after which it aborts every process."""
GCS_REFUSED_S = 3.0
"""The same, when nothing listens at its address."""


class Watchdog:
    """`ask_gcs` blocks until the GCS answered; it runs in a thread of its own."""

    def __init__(self, config: Config, gcs: str, ask_gcs: Callable[[], object]) -> None:
        self._config, self._gcs = config, gcs
        self._heard = time.monotonic()
        self._alive, self._since = -1, time.monotonic()
        self._deaths, self._step = 0, -1
        threading.Thread(target=self._ping, args=(ask_gcs,), daemon=True, name="gcs-ping").start()

    def look(self, status: dict[str, Any]) -> None:
        """What control says of itself. Raises RunError with who waits for what when the run cannot go on."""
        self._check_gcs()
        if status["alive"] != self._alive:
            self._alive, self._since = status["alive"], time.monotonic()
        if status.get("step", -1) > self._step:
            self._step, self._deaths = status["step"], 0
        idle = time.monotonic() - self._since
        if idle > self._patience_s(status):
            cause = "; ".join(status["waiting"]) or "nothing is waiting"
            raise RunError(f"nothing happened for {idle:.0f} s: {cause}. Continue with --resume.")

    def control_died(self, reason: str) -> None:
        """Raises RunError when it cannot be helped."""
        self._check_gcs()
        self._deaths += 1
        if self._deaths >= MOST_DEATHS:
            often = f"control died {self._deaths} times before the next step was finished"
            raise RunError(f"{often}: {reason}. Continue with --resume.")
        time.sleep(0.5)

    def _patience_s(self, status: dict[str, Any]) -> float:
        """How long nothing may happen: a harness that is busy without a model call has its own time-out first."""
        busy = status["phase"] == "running" and status["placed"] > status["ended"] and not status["calls"]
        config = self._config
        return config.cluster.watchdog_s + (config.harness.overall_timeout_s if busy else 0.0)

    def _check_gcs(self) -> None:
        silent = time.monotonic() - self._heard
        if silent > GCS_S or (silent > GCS_REFUSED_S and not listens(self._gcs)):
            raise RunError(
                f"the GCS (Ray's head process at {self._gcs}) has not answered for {silent:.0f} s: "
                "the run cannot go on without it. Continue with --resume."
            )

    def _ping(self, ask_gcs: Callable[[], object]) -> None:
        while True:
            try:
                ask_gcs()
            except Exception:  # silence is the answer
                continue
            finally:
                time.sleep(1.0)
            self._heard = time.monotonic()


def listens(address: str) -> bool:
    """Whether something accepts connections at `host:port`."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 2).close()
    except OSError:
        return False
    return True
