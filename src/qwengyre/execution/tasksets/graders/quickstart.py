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


def score(case: dict, paths: "dict[str, str | None]") -> float:
    """The share of the task that is done, before unexpected paths count."""
    kind, files = case["kind"], case["files"]
    if kind in ("mkdir", "mkdir3"):
        return sum(folder(name) for name in case["new"]) / len(case["new"])
    if kind == "delete":
        return float(case["old"] not in paths and paths.get(case["keep"]) == files[case["keep"]])
    old, new = case["old"], case["new"][0]
    equal = paths.get(new) == files[old]
    if kind == "copy":
        return 0.2 * (new in paths) + 0.8 * (equal and paths.get(old) == files[old])
    return 0.2 * (new in paths) + 0.4 * equal + 0.4 * (equal and old not in paths)


def main() -> None:
    """Grade, halve for any path that is neither given nor asked for, and write the reward at once."""
    case = json.loads((TESTS / "case.json").read_text())
    paths = found()
    reward = score(case, paths)
    unexpected = sorted(set(paths) - set(case["files"]) - set(case.get("new", [])))
    reward = reward / 2 if unexpected else reward
    part = OUT / "reward.part"
    part.write_text(json.dumps({"reward": round(reward, 6), "unexpected": len(unexpected)}))
    part.replace(OUT / "reward.json")


if __name__ == "__main__":
    main()
