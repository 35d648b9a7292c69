"""The user's mistakes: one clear line, exit 2, nothing half-written."""

import json
import os
import shutil
import socket
from pathlib import Path

import pytest
from running import COMMAND, ROOT, qwengyre

from qwengyre.model import load

pytestmark = pytest.mark.e2e


def refused(tmp_path: Path, *words: str, says: str, env: dict[str, str] | None = None) -> None:
    import subprocess

    run_dir = tmp_path / "run"
    before = sorted(run_dir.rglob("*")) if run_dir.exists() else None
    done = subprocess.run(
        [str(COMMAND), "train", "examples/tiny.toml", "--run-dir", str(run_dir), *words],
        capture_output=True, text=True, cwd=ROOT, env={**os.environ, **(env or {})}, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    errors = done.stderr.strip().splitlines()
    assert len(errors) == 1, done.stderr
    assert errors[0].startswith("error: ")
    assert says in errors[0], errors[0]
    assert (sorted(run_dir.rglob("*")) if run_dir.exists() else None) == before


def test_unknown_key_names_the_nearest(tmp_path: Path) -> None:
    refused(tmp_path, "rl.groupsize=3", says="did you mean 'group_size'?")


def test_missing_model_folder(tmp_path: Path) -> None:
    refused(tmp_path, f"model.name={tmp_path}/no/model", says="no such folder")


def test_model_without_a_chat_template(tmp_path: Path) -> None:
    folder = tmp_path / "bare"
    shutil.copytree(load.resolve("tiny"), folder)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    refused(tmp_path, f"model.name={folder}", says="chat template")


def test_broken_task(tmp_path: Path) -> None:
    task = tmp_path / "tasks" / "one"
    (task / "tests").mkdir(parents=True)
    (task / "tests" / "test.sh").write_text("true\n")
    (task / "instruction.md").write_text("Do it.\n")
    (task / "task.toml").write_text("[agent]\ntimout_sec = 3\n")
    refused(tmp_path, "tasks.kind=harbor", f"tasks.path={task.parent}", says="timeout_sec")
    (task / "task.toml").write_text("[agent\n")
    refused(tmp_path, "tasks.kind=harbor", f"tasks.path={task.parent}", says="task.toml")


def test_no_sandbox_on_this_machine(tmp_path: Path) -> None:
    broken = tmp_path / "bin" / "bwrap"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\necho no user namespaces >&2\nexit 1\n")
    broken.chmod(0o755)
    refused(tmp_path, says="no user namespaces", env={"PATH": f"{broken.parent}:{os.environ['PATH']}"})


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused(tmp_path, f"gateway.port={port}", says=f"gateway.port={port}")


def test_a_folder_that_holds_a_run(tmp_path: Path, tiny_run: Path) -> None:
    (tmp_path / "run").mkdir()
    shutil.copy(tiny_run / "config.toml", tmp_path / "run")
    refused(tmp_path, says="--resume")


def test_an_unwritable_folder(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    done = qwengyre("train", "examples/tiny.toml", "--run-dir", str(tmp_path / "run"))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    done = qwengyre("train", "examples/tiny.toml", "--run-dir", "/proc/run")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "--run-dir" in done.stderr


def test_a_policy_that_leaves_no_cell_for_rollout(tmp_path: Path) -> None:
    refused(tmp_path, "policy.kind=async", says="none rolls out")
