"""`qwengyre serve` from outside: where agents go, what is recorded, how it ends."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import httpx
import pytest

from qwengyre.gateway.journal import read_calls


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[tuple["subprocess.Popen[str]", Path]]:
    run_dir = tmp_path / "run"
    code = "from qwengyre.cli import main; main()"
    words = ["serve", "--run-dir", str(run_dir), "--executions", "2", "model.name=tiny", "rl.max_tokens=4"]
    process = subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.PIPE, text=True)
    yield process, run_dir
    process.kill()
    process.communicate()


def until(lines: IO[str], word: str) -> list[str]:
    seen: list[str] = []
    for line in lines:
        seen.append(line)
        if word in line:
            return seen
    raise AssertionError(f"no {word!r} in {seen}")


def test_it_serves_records_and_ends(serving: tuple["subprocess.Popen[str]", Path]) -> None:
    process, run_dir = serving
    assert process.stdout is not None
    said = "".join(until(process.stdout, "Ctrl-C ends it"))
    bases = re.findall(r"OPENAI_BASE_URL=(\S+) OPENAI_API_KEY=(\S+)", said)
    assert len(bases) == len(set(bases)) == 2
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 100}
    for base, key in bases:
        assert key in base
        answer = httpx.post(f"{base}/chat/completions", json=body, timeout=60, trust_env=False).json()
        assert answer["usage"]["completion_tokens"] <= 4
    asked = {**body, "max_tokens": 2}
    answer = httpx.post(f"{base.removesuffix('/v1')}/v1/messages", json=asked, timeout=60, trust_env=False).json()
    assert answer["type"] == "message"
    starter = run_dir / "start" / "0-0" / "codex.sh"
    echo = subprocess.run(["sh", starter, "env"], capture_output=True, text=True, check=True).stdout
    assert f"QWENGYRE_KEY={bases[0][1]}" in echo
    assert bases[0][0] in (run_dir / "start" / "0-0" / "codex" / ".codex" / "config.toml").read_text()
    assert "{" not in "".join(line for line in echo.splitlines() if line.startswith(("CODEX", "QWENGYRE_KEY")))
    process.send_signal(signal.SIGINT)
    ended = process.stdout.read()
    assert process.wait(60) == 0
    assert re.search(r"0-0: 1 calls, \d+ tokens in, \d+ out; look at it: qwengyre inspect", ended)
    log = read_calls(run_dir / "calls" / "1-0.calls")
    assert (len(log.calls), log.sealed) == (2, True)
    environment = {**os.environ, "COLUMNS": "200"}
    code = "from qwengyre.cli import main; main()"
    shown = subprocess.run(
        [sys.executable, "-c", code, "inspect", str(run_dir), "1-0"],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert "main" in shown.stdout
