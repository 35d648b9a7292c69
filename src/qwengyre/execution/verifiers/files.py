"""Read a file that an untrusted process wrote: never through a link, never a device, never more than a bound."""

import json
import os
import stat
from pathlib import Path
from typing import Any


class NoReward(Exception):
    """There is no valid reward; the text is the reason, one line."""


def text(folder: Path, name: str, most_bytes: int) -> str | None:
    """A short regular file's text; None when there is no file. Raises NoReward."""
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
    if not stat.S_ISREG(os.fstat(fd).st_mode) or os.fstat(fd).st_size > most_bytes:
        os.close(fd)
        raise NoReward(f"{name} is not a regular file of at most {most_bytes} bytes")
    try:
        with open(fd, "rb") as file:
            return file.read(most_bytes).decode().strip()
    except UnicodeDecodeError:
        raise NoReward(f"{name} is not UTF-8 text") from None


def parsed(content: str, name: str) -> Any:
    """JSON. Raises NoReward."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise NoReward(f"{name} is not JSON: {str(error)[:80]}") from None
