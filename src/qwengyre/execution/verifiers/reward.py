"""Read a reward that an untrusted process wrote. Everything about it is checked; nothing is assumed."""

import json
import math
import os
import stat
from pathlib import Path
from typing import Any

_MOST = {"reward.json": 64 << 10, "reward.txt": 1 << 10}


class NoReward(Exception):
    """There is no valid reward; the text is the reason, one line."""


def read(folder: Path) -> tuple[float, dict[str, Any]]:
    """(score in [0, 1], raw counts) from reward.json, else reward.txt. Raises NoReward.

    reward.json is a number, or a flat object with `reward`, or with `passed` and `total`.
    """
    text = _text(folder, "reward.json")
    if text is not None:
        return _json(text)
    text = _text(folder, "reward.txt")
    if text is None:
        raise NoReward("the verifier wrote neither reward.json nor reward.txt")
    try:
        return _share(float(text), "reward.txt"), {}
    except ValueError:
        raise NoReward(f"reward.txt holds {text[:40]!r}, not a number") from None


def _json(text: str) -> tuple[float, dict[str, Any]]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NoReward(f"reward.json is not JSON: {str(error)[:80]}") from None
    if not isinstance(value, dict):
        return _share(value, "reward.json"), {}
    detail = {key: item for key, item in value.items() if _number(item)}
    if "reward" in value:
        return _share(value["reward"], "reward.json: reward"), detail
    passed, total = detail.get("passed"), detail.get("total", 0)
    if passed is None or total <= 0:
        raise NoReward("reward.json has neither 'reward' nor 'passed' and a positive 'total'")
    return _share(passed / total, "reward.json: passed / total"), detail


def _share(value: Any, what: str) -> float:
    if not _number(value) or not 0 <= value <= 1:
        raise NoReward(f"{what} is {str(value)[:40]!r}, not a number in [0, 1]")
    return float(value)


def _number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 1 << 53 if isinstance(value, int) else math.isfinite(value)


def _text(folder: Path, name: str) -> str | None:
    """A short regular file's text, never through a link; None when there is no file. Raises NoReward."""
    try:
        top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=top)
        finally:
            os.close(top)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise NoReward(f"{name} cannot be read: {error.strerror}") from None
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > _MOST[name]:
            raise NoReward(f"{name} is not a regular file of at most {_MOST[name]} bytes")
        return os.read(fd, _MOST[name]).decode().strip()
    except UnicodeDecodeError:
        raise NoReward(f"{name} is not UTF-8 text") from None
    finally:
        os.close(fd)
