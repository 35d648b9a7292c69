"""A run of a small example in which one real process is killed at a named point of the journal."""

import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from running import COMMAND, ROOT, leftovers, lines, wait_until

Entry = dict[str, Any]
Point = Callable[[list[Entry]], bool]
"""True once the journal has come to the named point."""


def event(name: str, number: int = 1, **fields: Any) -> Point:
    """The `number`-th event of that kind, with these fields."""
    return lambda journal: sum(_has(e["event"], name, fields) for e in journal) >= number


def action(name: str, number: int = 1, **fields: Any) -> Point:
    """The `number`-th action of that kind is asked: it begins now."""
    return lambda journal: sum(_has(a, name, fields) for e in journal for a in e["actions"]) >= number


def _has(value: dict[str, Any], name: str, fields: dict[str, Any]) -> bool:
    return value["type"] == name and all(value.get(k) == v for k, v in fields.items())


class Run:
    """One run as a user starts it, and what can be done to it. Use as a context manager."""

    def __init__(self, run_dir: Path, *words: str, config: str = "examples/tiny.toml") -> None:
        self.run_dir = run_dir
        self._words = ("train", config, *words, "--run-dir", str(run_dir))
        self._log = run_dir.parent / f"{run_dir.name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Run":
        with self._log.open("wb") as log:
            self._process = subprocess.Popen([str(COMMAND), *self._words], cwd=ROOT, stdout=log, stderr=log)
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing of a run is alive 60 s after its end, whatever ended it."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(10)
        wait_until(lambda: not leftovers(self.run_dir), 60, "something of the run is left")

    @property
    def said(self) -> str:
        """What the command printed."""
        return self._log.read_text()

    def journal(self) -> list[Entry]:
        """Complete entries so far."""
        path = self.run_dir / "journal.jsonl"
        whole = path.read_bytes().rpartition(b"\n")[0].splitlines() if path.exists() else []
        return [json.loads(line) for line in whole[1:]]

    def wait_for(self, point: Point, timeout_s: float = 90) -> None:
        """Until the journal comes to `point`."""
        deadline = time.monotonic() + timeout_s
        while not point(self.journal()):
            assert self._process is not None
            assert self._process.poll() is None, f"the run ended too early:\n{self.said}"
            assert time.monotonic() < deadline, f"the point was not reached:\n{self.said}"
            time.sleep(0.002)

    def wait_for_calls(self, number: int, timeout_s: float = 90) -> None:
        """Until so many harnesses wait for an answer."""
        deadline = time.monotonic() + timeout_s
        while sum(log[-1:] == ["request"] for log in self._harnesses()) < number:
            assert time.monotonic() < deadline, f"the calls were not seen:\n{self.said}"
            time.sleep(0.01)

    def _harnesses(self) -> list[list[str]]:
        """The kinds of what each harness logged."""
        return [[kind for entry in log for kind in entry if kind != "at"] for log in self._logs().values()]

    def _logs(self) -> dict[str, list[dict[str, Any]]]:
        found: dict[str, list[dict[str, Any]]] = {}
        for log in sorted((self.run_dir / "executions").glob("*/harness.log")):
            whole = log.read_bytes().rpartition(b"\n")[0].splitlines()
            found[log.parent.name] = [json.loads(line) for line in whole if line.startswith(b"{")]
        return found

    def process(self, name: str) -> dict[str, Any]:
        """What `processes.json` says of a process."""
        found = json.loads((self.run_dir / "processes.json").read_text())
        return {"pid": found["ray"][name]} if name in found["ray"] else found["processes"][name]

    def kill(self, name: str) -> int:
        """SIGKILL. Returns the pid."""
        pid = self.process(name)["pid"]
        os.kill(pid, signal.SIGKILL)
        return pid

    def is_alive(self) -> bool:
        """Whether the command runs."""
        return self._process is not None and self._process.poll() is None

    def end(self, timeout_s: float = 150) -> int:
        """The exit code."""
        assert self._process is not None
        return self._process.wait(timeout_s)

    # --- what must be true of every run that survived ---------------------------------------------------------------

    def check_whole(self, steps: int) -> None:
        """Ended as configured; each step once, each group in one step at most, each execution settled once."""
        assert self.end() == 0, self.said
        rows = lines(self.run_dir / "metrics.jsonl")
        assert [row["step"] for row in rows] == list(range(steps))
        counts = Counter(group for row in rows for group in row["groups"])
        assert set(counts.values()) == {1}, counts
        settled = Counter(score["execution"] for score in lines(self.run_dir / "scores.jsonl"))
        assert set(settled.values()) == {1}, settled
        started = Counter(str(e["event"]["execution"]) for e in self.journal() if e["event"]["type"] == "placed")
        assert set(started.values()) == {1}, "no execution begins twice"

    def verdicts(self) -> Counter[str]:
        """Executions by verdict."""
        return Counter(score["verdict"] for score in lines(self.run_dir / "scores.jsonl"))

    def harness_errors(self) -> list[str]:
        """Whatever a harness logged as an error: `execution: error`."""
        return [f"{name}: {e['error']}" for name, log in self._logs().items() for e in log if "error" in e]

    def check_harnesses(self) -> None:
        """Every request of every harness was answered, and no answer came twice."""
        for name, log in self._logs().items():
            kinds = Counter(kind for entry in log for kind in ("request", "answer") if kind in entry)
            assert kinds["request"] == kinds["answer"], f"{name}: {kinds}"
            ids = [entry["answer"]["id"] for entry in log if "answer" in entry]
            assert len(set(ids)) == len(ids), f"{name}: an answer came twice"
