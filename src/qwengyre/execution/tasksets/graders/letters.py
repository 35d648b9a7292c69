"""Grader of one letters task: the share of answer.txt's characters that are a to z, counted over at least 16."""

import json
import os
import pathlib

APP = pathlib.Path(os.environ.get("TASK_WORKDIR", "/app"))
OUT = pathlib.Path(os.environ.get("TASK_LOGS", "/logs/verifier"))


def main() -> None:
    """Grade and write the reward at once. No answer, or one that is not a short regular file, is worth 0."""
    answer = APP / "answer.txt"
    plain = answer.is_file() and not answer.is_symlink() and answer.stat().st_size < 1 << 20
    text = answer.read_text(errors="replace") if plain else ""
    letters = sum("a" <= character <= "z" for character in text)
    part = OUT / "reward.part"
    part.write_text(json.dumps({"reward": round(letters / max(16, len(text)), 6), "characters": len(text)}))
    part.replace(OUT / "reward.json")


if __name__ == "__main__":
    main()
