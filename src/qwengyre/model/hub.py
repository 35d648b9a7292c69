"""How far a download from the hub is: a tqdm that shows nothing and tells."""

import io
from typing import Any

from tqdm.std import tqdm

from qwengyre.types import Phase, Progress


def bar(what: str, progress: Progress) -> type[Any]:
    """A class for `snapshot_download(tqdm_class=...)`, which makes three bars: files, bytes received, bytes written.

    The last is told; its total grows while sizes become known.
    """

    class Told(tqdm):
        def __init__(self, *args: Any, **given: Any) -> None:
            self._bytes = str(given.get("desc", "")).startswith("Reconstructing")
            self._told = False
            super().__init__(*args, **{**given, "file": io.StringIO(), "disable": False, "mininterval": 0.25})

        def display(self, *args: Any, **given: Any) -> bool:
            if self._bytes and self.total:
                self._tell(over=False)
            return True

        def set_description(self, *args: Any, **given: Any) -> None:
            """Said once at the end. What was cached before has nothing to tell."""
            super().set_description(*args, **given)
            if self._bytes and self._told:
                self._tell(over=True)
                self._bytes = False

        def _tell(self, over: bool) -> None:
            self._told = True
            progress(Phase(what, float(self.n), float(self.total), "B", over))

    return Told
