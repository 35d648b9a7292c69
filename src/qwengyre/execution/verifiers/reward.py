"""Read a reward that an untrusted process wrote. Everything about it is checked; nothing is assumed."""

import math
from pathlib import Path
from typing import Any

from qwengyre.execution.verifiers.files import NoReward, parsed
from qwengyre.execution.verifiers.files import text as text_of

_MOST = {"reward.json": 64 << 10, "reward.txt": 1 << 10}


def read(folder: Path) -> tuple[float, dict[str, Any]]:
    """(score in [0, 1], raw counts) from reward.json, else reward.txt. Raises NoReward.

    reward.json is a number, or a flat object with `reward`, or with `passed` and `total`.
    """
    text = text_of(folder, "reward.json", _MOST["reward.json"])
    if text is not None:
        return _json(text)
    text = text_of(folder, "reward.txt", _MOST["reward.txt"])
    if text is None:
        raise NoReward("the verifier wrote neither reward.json nor reward.txt")
    try:
        return _share(float(text), "reward.txt"), {}
    except ValueError:
        raise NoReward(f"reward.txt holds {text[:40]!r}, not a number") from None


def _json(text: str) -> tuple[float, dict[str, Any]]:
    value = parsed(text, "reward.json")
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
