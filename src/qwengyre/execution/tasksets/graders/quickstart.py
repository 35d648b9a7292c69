"""Grader of one quickstart task: runs in the verifier's box beside case.json, with the standard library alone.

Writes {"reward": share} into the verifier's log folder. Nothing in the workspace is executed or followed.
"""

import json
import os
import pathlib

TESTS = pathlib.Path(__file__).parent
APP = pathlib.Path(os.environ.get("TASK_WORKDIR", "/app"))
OUT = pathlib.Path(os.environ.get("TASK_LOGS", "/logs/verifier"))


def found() -> "dict[str, str | None]":
    """Every path in the workspace: the text of a short regular file, None for anything else."""
    paths: dict[str, str | None] = {}
    for path in sorted(APP.rglob("*")):
        plain = path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 16
        paths[str(path.relative_to(APP))] = path.read_text(errors="replace") if plain else None
    return paths


def folder(name: str) -> bool:
    """A real folder in the workspace."""
    path = APP / name
    return path.is_dir() and not path.is_symlink()


def score(part: dict, paths: "dict[str, str | None]") -> float:
    """The share of one part that is done, before unexpected paths count."""
    kind, files, old, new = part["kind"], part["files"], part["old"], part["new"]
    if kind in ("mkdir", "mkdir3"):
        return sum(folder(name) for name in new) / len(new)
    if kind == "delete":
        kept = all(paths.get(name) == text for name, text in files.items() if name != old)
        return float(old not in paths and kept)
    equal = paths.get(new[0]) == files[old]
    if kind == "copy":
        return 0.2 * (new[0] in paths) + 0.8 * (equal and paths.get(old) == files[old])
    return 0.2 * (new[0] in paths) + 0.4 * equal + 0.4 * (equal and old not in paths)


def main() -> None:
    """The mean of the parts, halved for any path that is neither given nor asked for, written at once."""
    parts = json.loads((TESTS / "case.json").read_text())["parts"]
    paths = found()
    reward = sum(score(part, paths) for part in parts) / len(parts)
    known = {name for part in parts for name in (*part["files"], *part["new"])}
    unexpected = sorted(set(paths) - known)
    reward = reward / 2 if unexpected else reward
    unfinished = OUT / "reward.part"
    unfinished.write_text(json.dumps({"reward": round(reward, 6), "unexpected": len(unexpected)}))
    unfinished.replace(OUT / "reward.json")


if __name__ == "__main__":
    main()
