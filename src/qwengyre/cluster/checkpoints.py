"""Checkpoints of a run: `checkpoints/step-000002/`, a HF folder that `from_pretrained` opens, complete or absent.

A folder counts only when it holds `run.json`, which is written last: {schema_version, step, version, seconds, bytes},
where `step` is the number of finished optimizer steps it contains; seconds and bytes are what writing it took.
"""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MARK = "run.json"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint's folder, the steps it contains, and the version its weights were published as."""

    folder: Path
    step: int
    version: int

    def complete(self, seconds: float = 0.0) -> dict[str, Any]:
        """Mark the folder, which was written in `seconds`, complete, durably. Returns what the mark says."""
        said: dict[str, Any] = {
            "schema_version": 1,
            "step": self.step,
            "version": self.version,
            "seconds": round(seconds, 3),
        }
        said["bytes"] = sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())
        unfinished = self.folder / f".{MARK}"
        with unfinished.open("w") as file:
            json.dump(said, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(self.folder / MARK)
        return said


def complete(run_dir: Path) -> list[Checkpoint]:
    """The complete checkpoints of a run folder, oldest first."""
    found: list[Checkpoint] = []
    for mark in (run_dir / "checkpoints").glob(f"step-*/{MARK}"):
        said = json.loads(mark.read_text())
        found.append(Checkpoint(mark.parent, said["step"], said["version"]))
    return sorted(found, key=lambda c: c.step)


def steps_of(folder: Path) -> int:
    """How many optimizer steps the weights of a checkpoint folder contain; 0 where its mark is missing."""
    mark = folder / MARK
    return json.loads(mark.read_text())["step"] if mark.exists() else 0


def newest(run_dir: Path) -> Checkpoint | None:
    """The one a resume starts from."""
    found = complete(run_dir)
    return found[-1] if found else None


def prune(run_dir: Path, keep: int) -> None:
    """Remove all but the newest `keep` (0: keep all). The mark goes first, so a half-removed one never counts."""
    for old in complete(run_dir)[:-keep] if keep else []:
        (old.folder / MARK).unlink()
        shutil.rmtree(old.folder)
