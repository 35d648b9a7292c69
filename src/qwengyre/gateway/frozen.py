"""The tree and the roles of an ended execution as one file of arrays, `<execution>.tree`: made once, then only mapped.

It holds nothing that its journal does not: whoever misses it makes it again. A waiting execution costs file pages,
which the operating system writes back and drops, and not memory.

    magic, length of the header (8 bytes, little-endian), header (JSON, padded to 64), arrays one after another
"""

import json
import os
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qwengyre.gateway.journal import CallLog, grow, read_calls
from qwengyre.trajectory.columns import Columns, columns, thaw
from qwengyre.trajectory.roles import KNOWN, LeafRole, Table, roles
from qwengyre.trajectory.tree import Tree

SCHEMA = 1
_MAGIC = b"QGtree01"
_ALIGN = 64


@dataclass(frozen=True)
class Frozen:
    """An execution that has ended, held in a map. `calls`: how many there were; `size`: its journal's bytes then."""

    path: Path
    columns: Columns
    roles: dict[int, LeafRole]
    calls: int
    size: int
    table: str

    def tree(self) -> Tree:
        """Its tree: rows in memory, tokens in the map."""
        return thaw(self.columns)


def frozen(journal: Path, table: Table = KNOWN) -> Frozen:
    """Of the ended execution whose calls `journal` holds: the file beside it, made if it is missing or of another
    journal, program or table. Raises JournalError on a damaged journal."""
    path = journal.with_suffix(".tree")
    found = read(path) if path.exists() else None
    if found is None or found.size != journal.stat().st_size or found.table != _digest(table):
        return freeze(journal, read_calls(journal), table)
    return found


def freeze(journal: Path, log: CallLog, table: Table = KNOWN) -> Frozen:
    """Write the file, complete or not at all, and map it. A disk without room for it costs memory, and no run."""
    tree, path = grow(log), journal.with_suffix(".tree")
    classes, size = roles(tree, log.calls, table), journal.stat().st_size
    made = Frozen(path, columns(tree), classes, len(log.calls), size, _digest(table))
    part = journal.with_suffix(f".{os.getpid()}.part")
    try:
        _write(part, made)
        part.rename(path)
    except OSError:
        part.unlink(missing_ok=True)
        return made
    return read(path) or made


def _write(path: Path, made: Frozen) -> None:
    header = {
        "schema": SCHEMA,
        "size": made.size,
        "calls": made.calls,
        "table": made.table,
        "roles": {str(leaf): list(role) for leaf, role in made.roles.items()},
        "threads": made.columns.threads,
        "arrays": [[name, array.dtype.str, list(array.shape)] for name, array in made.columns.arrays.items()],
    }
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 16) % _ALIGN)
    with path.open("wb") as file:
        file.write(_MAGIC + len(text).to_bytes(8, "little") + text)
        for array in made.columns.arrays.values():
            file.write(np.ascontiguousarray(array).data)
        file.flush()
        os.fsync(file.fileno())


def read(path: Path) -> Frozen | None:
    """Map a file. None where it is no whole file of this version: its journal makes it again."""
    if path.stat().st_size < 16:
        return None
    whole: NDArray[Any] = np.asarray(np.memmap(path, np.uint8, "r"))
    start = 16 + int.from_bytes(whole[8:16].tobytes(), "little")
    if whole[:8].tobytes() != _MAGIC or len(whole) < start:
        return None
    header = json.loads(whole[16:start].tobytes())
    if header["schema"] != SCHEMA:
        return None
    arrays: dict[str, NDArray[Any]] = {}
    for name, dtype, shape in header["arrays"]:
        end = start + int(np.prod(shape)) * np.dtype(dtype).itemsize
        if end > len(whole):
            return None
        arrays[name] = whole[start:end].view(dtype).reshape(shape)
        start = end
    found = {int(leaf): LeafRole(*role) for leaf, role in header["roles"].items()}
    made_of = Columns(tuple(header["threads"]), arrays)
    return Frozen(path, made_of, found, header["calls"], header["size"], header["table"])


def _digest(table: Table) -> str:
    return blake2b(repr(table).encode(), digest_size=8).hexdigest()
