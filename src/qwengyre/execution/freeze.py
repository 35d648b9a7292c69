"""Freeze a work product: a bounded copy without links out, devices or surprises, and its SHA-256.

The copy of a frozen copy has the same hash, so a grading copy is checked by making it. Nothing is followed: every
name is opened relative to its folder's descriptor, never through a link.
"""

import difflib
import errno
import hashlib
import os
import stat
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

MOST_FILES = 50_000
DEEPEST = 64
_CHUNK = 1 << 20
_DIFF_FILE = 64 << 10
_DIFF_TOTAL = 1 << 20


@dataclass
class Frozen:
    """What was copied. `hash` is over the sorted listing with contents; `left_out` says what was not, and why."""

    hash: str = ""
    files: int = 0
    bytes: int = 0
    left_out: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class _Walk:
    """One walk: its frame, and what it has gathered. `workdir` is what the source was called inside."""

    target: Path
    workdir: str
    most_bytes: int
    lines: list[str] = field(default_factory=list[str])
    links: dict[str, str] = field(default_factory=dict[str, str])
    done: Frozen = field(default_factory=Frozen)

    def skip(self, path: str, why: str) -> None:
        if len(self.done.left_out) < 100:
            self.done.left_out.append(f"{path}: {why}")


def freeze(source: Path, target: Path, *, workdir: str, most_bytes: int) -> Frozen:
    """Copy `source` into the new folder `target`. Blocks; run it in a thread.

    Kept: folders, regular files (mode 644 or 755), links that stay inside. Left out: everything else, what exceeds
    `most_bytes`, MOST_FILES entries or DEEPEST levels. Raises FileExistsError when `target` exists.
    """
    target.mkdir(parents=True)
    walk = _Walk(target, workdir.rstrip("/"), most_bytes)
    top = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        _folder(walk, top, "", 0)
    finally:
        os.close(top)
    _keep_inner_links(walk)
    listing = "\n".join(sorted(walk.lines))
    walk.done.hash = hashlib.sha256(listing.encode(errors="surrogateescape")).hexdigest()
    return walk.done


def _folder(walk: _Walk, fd: int, path: str, depth: int) -> None:
    """Copy one open folder; links are only noted."""
    with os.scandir(fd) as entries:
        names = sorted(entry.name for entry in entries)
    for name in names:
        inner = f"{path}/{name}" if path else name
        if len(walk.lines) + len(walk.links) >= MOST_FILES:
            walk.skip(inner, f"more than {MOST_FILES} entries")
            return
        mode = os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode):
            walk.links[inner] = os.readlink(name, dir_fd=fd)
        elif stat.S_ISREG(mode):
            _file(walk, fd, name, inner)
        elif not stat.S_ISDIR(mode):
            walk.skip(inner, "not a file, folder or link")
        elif depth >= DEEPEST or len(os.fsencode(inner)) > 3000:
            walk.skip(inner, f"deeper than {DEEPEST} levels or a path too long")
        else:
            (walk.target / inner).mkdir()
            walk.lines.append(f"folder {inner!r}")
            below = _open(name, os.O_DIRECTORY, fd)
            try:
                _folder(walk, below, inner, depth + 1)
            finally:
                os.close(below)


def _file(walk: _Walk, folder: int, name: str, inner: str) -> None:
    fd = _open(name, os.O_NONBLOCK, folder)
    with open(fd, "rb") as source:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode) or walk.done.bytes + facts.st_size > walk.most_bytes:
            walk.skip(inner, f"{facts.st_size} bytes more than the limit of {walk.most_bytes}")
            return
        digest = hashlib.sha256()
        left = facts.st_size  # never more than was counted, even if something still writes
        with open(walk.target / inner, "xb") as copy:
            while left and (data := source.read(min(left, _CHUNK))):
                left -= len(data)
                digest.update(data)
                copy.write(data)
    mode = 0o755 if facts.st_mode & 0o100 else 0o644
    (walk.target / inner).chmod(mode)
    size = facts.st_size - left
    walk.done.bytes += size
    walk.done.files += 1
    walk.lines.append(f"file {inner!r} {mode:o} {size} {digest.hexdigest()}")


def _open(name: str, flags: int, folder: int) -> int:
    """Open for reading, never through a link; an owner's own mode bits do not hide a file from its freezing."""
    flags |= os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags, dir_fd=folder)
    except PermissionError:
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            os.chmod(f"/proc/self/fd/{fd}", 0o700)
        finally:
            os.close(fd)
        return os.open(name, flags, dir_fd=folder)


def _keep_inner_links(walk: _Walk) -> None:
    """Make the links, relative, then remove those that lead out: a link may do so only by way of another."""
    made: dict[str, str] = {}
    for path, given in sorted(walk.links.items()):
        target = given
        if given == walk.workdir or given.startswith(f"{walk.workdir}/"):
            target = os.path.relpath(given[len(walk.workdir) :].lstrip("/") or ".", os.path.dirname(path) or ".")
        if os.path.isabs(target) or os.path.normpath(os.path.join(os.path.dirname(path), target)).startswith(".."):
            walk.skip(path, "a link out of the work product")
        else:
            os.symlink(target, walk.target / path)
            made[path] = target
    root = os.path.realpath(walk.target)
    for path, target in made.items():
        end = os.path.realpath(walk.target / path)
        if end == root or end.startswith(f"{root}/"):
            walk.lines.append(f"link {path!r} {target!r}")
        else:
            walk.skip(path, "a link out of the work product")
            (walk.target / path).unlink()


def remove(folder: Path) -> None:
    """Delete a tree that a harness may have made hard to delete: any depth, folders without permissions."""
    for command in (["rm", "-rf"], ["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
        if os.path.lexists(folder):
            subprocess.run([*command, "--", folder], check=False, capture_output=True)


def diff(before: list[Path], after: Path, *, without: Sequence[str] = ()) -> str:
    """A unified diff from the folders `before` (later ones win) to `after`; bounded, binary files only named.

    `without`: files and folders of `before` that were not shown, relative.
    """
    old = {name: path for folder in before for name, path in _files(folder).items()}
    hidden = set(without)
    if hidden:
        old = {name: path for name, path in old.items() if not hidden & {name, *map(str, Path(name).parents)}}
    new = _files(after)
    pieces: list[str] = []
    total = 0
    for name in sorted({*old, *new}):
        piece = _diff_file(name, old.get(name), new.get(name))
        total += len(piece)
        if total > _DIFF_TOTAL:
            pieces.append(f"... more than {_DIFF_TOTAL} characters: see work/\n")
            break
        pieces.append(piece)
    return "".join(pieces)


def _files(folder: Path) -> dict[str, Path]:
    if not folder.is_dir():
        return {}
    walk = os.walk(folder, followlinks=False)
    paths = (Path(top, name) for top, _, names in walk for name in names)
    return {str(path.relative_to(folder)): path for path in paths}


def _diff_file(name: str, old: Path | None, new: Path | None) -> str:
    before, after = _text(old), _text(new)
    if before is None or after is None:
        return "" if _same(old, new) else f"Binary, long or special file {name!r} differs\n"
    lines = difflib.unified_diff(
        before.splitlines(keepends=True),
        after.splitlines(keepends=True),
        f"a/{name}" if old else "/dev/null",
        f"b/{name}" if new else "/dev/null",
    )
    text = "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
    if not text and (old is None or new is None):
        return f"{'Added' if old is None else 'Removed'} empty file {name!r}\n"
    return text


def _same(old: Path | None, new: Path | None) -> bool:
    """Whether two long or binary files are equal, by size and content."""
    if old is None or new is None or old.is_symlink() or new.is_symlink():
        return bool(old and new and old.is_symlink() and new.is_symlink() and os.readlink(old) == os.readlink(new))
    if old.stat().st_size != new.stat().st_size:
        return False
    with old.open("rb") as left, new.open("rb") as right:
        return hashlib.file_digest(left, "sha256").digest() == hashlib.file_digest(right, "sha256").digest()


def _text(path: Path | None) -> str | None:
    """A short text; "" for none; None for what is not a short text."""
    if path is None:
        return ""
    try:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > _DIFF_FILE:
            return None
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno not in (errno.EACCES, errno.ENOENT):
            raise
        return None
