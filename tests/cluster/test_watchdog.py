"""What ends a run that cannot go on, each with its sentence. Time passes by a clock of the test's own."""

import socket
import threading
from typing import Any

import pytest

from qwengyre.cluster import watchdog
from qwengyre.cluster.watchdog import Watchdog
from qwengyre.config import Config
from qwengyre.errors import RunError


class Time:
    """Stands in for the module `time`: sleeping in the ping's thread waits for `go`, elsewhere it takes no time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.go = threading.Semaphore(0)
        self.pinged = threading.Semaphore(0)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, _: float) -> None:
        if threading.current_thread().name == "gcs-ping":
            self.pinged.release()
            self.go.acquire()


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    found = Time()
    monkeypatch.setattr(watchdog, "time", found)
    return found


def status(alive: int, **changes: Any) -> dict[str, Any]:
    return {
        "alive": alive, "phase": "running", "placed": 0, "ended": 0, "calls": 0, "step": 0, "waiting": ["a for b"]
    } | changes  # fmt: skip


def test_nothing_happens(time: Time) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gcs:
        dog = Watchdog(Config(), "{}:{}".format(*gcs.getsockname()), lambda: None)
        dog.look(status(1))
        for now in (100.0, 250.0):
            time.pinged.acquire()
            time.now = now
            time.go.release()
            time.pinged.acquire()  # heard at `now`
            time.pinged.release()
            dog.look(status(int(now)))
        time.now = 269.0
        dog.look(status(250))
        time.now = 560.0
        dog._heard = 560.0
        with pytest.raises(RunError, match=r"nothing happened for 310 s: a for b\."):
            dog.look(status(250))


def test_a_busy_harness_has_its_own_limit_first(time: Time) -> None:
    dog = Watchdog(Config(), "", lambda: None)
    dog.look(status(1))
    time.now = dog._heard = 3000.0
    dog.look(status(1, placed=1))
    with pytest.raises(RunError, match="nothing happened"):
        dog.look(status(1, placed=1, calls=1))


@pytest.mark.parametrize(("listens", "after_s"), [(True, 21.0), (False, 4.0)])
def test_a_gcs_that_is_silent(time: Time, listens: bool, after_s: float) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gcs:
        address = "{}:{}".format(*gcs.getsockname())
        if not listens:
            gcs.close()
        dog = Watchdog(Config(), address, threading.Event().wait)
        time.now = 2.0
        dog.look(status(1))
        time.now = after_s
        with pytest.raises(RunError, match=f"the GCS .* has not answered for {after_s:.0f} s"):
            dog.look(status(2))


def test_control_dies_again_and_again(time: Time) -> None:
    dog = Watchdog(Config(), "", lambda: None)
    for _ in range(watchdog.MOST_DEATHS - 1):
        dog.control_died("killed")
    dog.look(status(1, step=1))  # a step was finished: the count starts over
    for _ in range(watchdog.MOST_DEATHS - 1):
        dog.control_died("killed")
    with pytest.raises(RunError, match="control died 8 times before the next step was finished: killed"):
        dog.control_died("killed")
