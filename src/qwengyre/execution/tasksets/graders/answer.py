r"""Grader of a task whose answer is a text: what answer.txt ends with, against the expected one. 1 or 0.

The answer is what stands in the last \boxed{}, else after the last ####, else on the last line. Numbers are compared as
numbers (1,000 = 1000.0 = $1000), other texts without regard to case and white space.
"""

import json
import os
import pathlib
from fractions import Fraction

HERE = pathlib.Path(__file__).parent
APP = pathlib.Path(os.environ.get("TASK_WORKDIR", "/app"))
OUT = pathlib.Path(os.environ.get("TASK_LOGS", "/logs/verifier"))


def final(text: str) -> str:
    """The part of a reply that is its answer."""
    start = text.rfind("\\boxed{")
    if start >= 0:
        depth, at = 1, start + len("\\boxed{")
        for end in range(at, len(text)):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            if depth == 0:
                return text[at:end]
    if "####" in text:
        return text.rpartition("####")[2].strip().partition("\n")[0]
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def plain(text: str) -> str:
    """Without what is not meant."""
    return " ".join(text.strip().strip("$").rstrip(".").strip("$ ").split()).casefold()


def number(text: str) -> "Fraction | None":
    """Its value, None if it is no number. Long ones are texts: an exponent of a billion is no answer."""
    text = text.replace(",", "").replace(" ", "").removesuffix("%").removeprefix("$")
    if len(text) > 40 or "e" in text:
        return None
    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        return None


def same(given: str, expected: str) -> bool:
    """Whether they are the same answer."""
    one, two = plain(given), plain(expected)
    a, b = number(one), number(two)
    return a == b if a is not None and b is not None else one == two


def main() -> None:
    """Grade and write the reward at once. No answer, or one that is not a short regular file, is worth 0."""
    answer = APP / "answer.txt"
    found = answer.is_file() and not answer.is_symlink() and answer.stat().st_size < 1 << 20
    text = answer.read_text(errors="replace") if found else ""
    expected = json.loads((HERE / "case.json").read_text())["answer"]
    reward = float(bool(text.strip()) and same(final(text), expected))
    part = OUT / "reward.part"
    part.write_text(json.dumps({"reward": reward}))
    part.replace(OUT / "reward.json")


if __name__ == "__main__":
    main()
