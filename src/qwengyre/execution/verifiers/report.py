"""What `inside.py` reported of one pytest session: only lines that carry the session's keyed hash count."""

import hashlib
import hmac
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_LONGEST = 1 << 16


@dataclass
class Report:
    """`outcomes` by test id; `collecting` and `started` are what was going on when the report ended, "" for nothing.

    `controls`: how the tests that must fail ended. A report that ends without `over` is one of a session that died.
    """

    begun: bool = False
    collecting: str = ""
    collected: bool = False
    started: str = ""
    over: bool = False
    outcomes: dict[str, str] = field(default_factory=dict[str, str])
    controls: list[str] = field(default_factory=list[str])

    @property
    def forged(self) -> bool:
        """A test that must fail passed, or none was there to confirm the passes: something interferes."""
        passes = "passed" in self.outcomes.values()
        return "passed" in self.controls or (passes and not self.controls)

    def settled(self, left: list[str]) -> dict[str, str]:
        """Outcomes of tests of `left`, as far as this session decides them; a dead session's culprit has `died`."""
        found = {test: self.outcomes[test] for test in left if test in self.outcomes}
        if self.over and self.collected:
            return {test: found.get(test, "missing") for test in left}
        if self.started:
            return {**found, **({self.started: "died"} if self.started in left else {})}
        if not self.collected and self.collecting:
            return {test: "died" for test in left if test.split("::")[0] == self.collecting}
        return found


def read(log: Path, key: bytes) -> Report:
    """The report in a session's log. Lines without the right hash, in the right order, are anybody's."""
    report = Report()
    for record in _records(log, key):
        _take(report, record)
    return report


def _records(log: Path, key: bytes) -> Iterator[list[str]]:
    number = 0
    with log.open("rb") as lines:
        while line := lines.readline(_LONGEST):
            if not line.startswith(b"@"):
                continue
            digest, _, text = line[1:].rstrip(b"\n").partition(b" ")
            made = hashlib.blake2b(b"%d " % number + text, key=key, digest_size=16).hexdigest()
            if hmac.compare_digest(made.encode(), digest):
                number += 1
                yield [bytes.fromhex(part.decode()).decode("utf-8", "surrogatepass") for part in text.split(b" ")]


def _take(report: Report, record: list[str]) -> None:
    word, rest = record[0], record[1:]
    if word == "begin":
        report.begun = True
    elif word == "collect":
        report.collecting = rest[0]
    elif word == "collected":
        report.collected, report.collecting = True, ""
    elif word == "start":
        report.started = rest[0]
    elif word == "end":
        report.started = ""
        worse = report.outcomes.get(rest[0]) == "failed"  # reported twice: the worse counts
        report.outcomes[rest[0]] = "failed" if worse else rest[1]
    elif word == "control":
        report.controls.append(rest[0])
    elif word == "over":
        report.over = True
