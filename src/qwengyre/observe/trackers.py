"""The numbers of `metrics.jsonl` and `evals.jsonl` in other programs' files. The plain files are the record: what is
written here can be made again from them, and a tracker that fails is left alone.
"""

import shutil
from pathlib import Path
from typing import Any

from qwengyre.errors import MachineError
from qwengyre.observe.progress import View


def tracker(run_dir: Path, *, tensorboard: bool) -> "TensorBoard | None":
    """What a run asks for; writes nothing yet. Raises MachineError when it is not installed."""
    return TensorBoard(run_dir / "tensorboard") if tensorboard else None


def numbers(row: dict[str, Any]) -> dict[str, float]:
    """The measured numbers of a line: names with a slash, flags as 0 and 1."""
    plain = {name: value for name, value in row.items() if "/" in name and isinstance(value, bool | int | float)}
    return {name: float(value) for name, value in plain.items()}


class TensorBoard:
    """`folder` is begun anew by each start of a run, with all lines so far, and when steps are trained again."""

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise MachineError(
                "observe.tensorboard=true needs tensorboardX: pip install 'qwengyre[tensorboard]', or leave it out "
                "(metrics.jsonl and evals.jsonl hold the same numbers)"
            ) from None
        self._folder = folder
        self._make = SummaryWriter
        self._writer: Any = None
        self._seen: dict[str, list[dict[str, Any]]] = {}

    def write(self, kind: str, rows: list[dict[str, Any]]) -> None:
        """All lines of a file so far; those that came are written, at their step. Raises OSError."""
        seen, writer = self._seen.get(kind, []), self._writer
        if writer is None or rows[: len(seen)] != seen:
            seen, writer = [], self._begin(kind)
        for row in rows[len(seen) :]:
            for name, value in numbers(row).items():
                writer.add_scalar(name, value, row["step"])
        self._seen[kind] = list(rows)

    def close(self) -> None:
        """Everything is on disk."""
        if self._writer is not None:
            self._writer.close()

    def _begin(self, kind: str) -> Any:
        """What lies in the folder is of steps that are gone, or of an earlier start: all of it comes again. Returns the
        writer; lines of `kind` are the caller's."""
        self.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._writer = self._make(str(self._folder), flush_secs=10)
        others = {other: rows for other, rows in self._seen.items() if other != kind}
        self._seen = {}
        for other, rows in others.items():
            self.write(other, rows)
        return self._writer


class Tracked:
    """A view, and a tracker beside it."""

    def __init__(self, shown: View, tracker: TensorBoard) -> None:
        self._shown = shown
        self._tracker: TensorBoard | None = tracker

    def __call__(self, status: dict[str, Any]) -> None:
        self._shown(status)
        try:
            for kind in ("rows", "evaluations"):
                if self._tracker is not None and status.get(kind):
                    self._tracker.write(kind, status[kind])
        except OSError as error:
            self._tracker = None
            self.say(f"TensorBoard's files are written no more: {error.strerror}; the run goes on")

    def say(self, line: str) -> None:
        """Print a line."""
        self._shown.say(line)

    def close(self) -> None:
        """Both of them."""
        self._shown.close()
        if self._tracker is not None:
            self._tracker.close()
