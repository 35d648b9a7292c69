"""bwrap words that show a root folder read-only and leave room for mount points in it."""

import os
from collections.abc import Iterable


def lay(root: str, tops: Iterable[str], points: list[str]) -> list[str]:
    """Words that show the entries `tops` of `root` at the top level, read-only.

    A folder that lacks a mount point (one of `points`, absolute inside) is shown entry by entry in a folder of the
    box's own, in which the mount point can be made. Entries that are mount points themselves are left out.
    """
    words: list[str] = []
    for top in tops:
        host, inside = os.path.join(root, top), f"/{top}"
        if inside not in points and os.path.lexists(host):
            words += _entry(host, inside, points)
    return words


def _entry(host: str, inside: str, points: list[str]) -> list[str]:
    if os.path.islink(host):
        return ["--symlink", os.readlink(host), inside]
    below = [point for point in points if point.startswith(f"{inside}/")]
    if not os.path.isdir(host) or all(os.path.lexists(host + point[len(inside) :]) for point in below):
        return ["--ro-bind", host, inside]
    words = ["--dir", inside]
    for name in sorted(os.listdir(host)):
        path = f"{inside}/{name}"
        if path not in points:
            words += _entry(f"{host}/{name}", path, below)
    return words
