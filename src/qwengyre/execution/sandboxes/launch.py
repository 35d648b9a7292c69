"""Runs outside the box as `python -I -S launch.py`: join control groups, set limits, become the command.

launch.py JOIN[:JOIN...] FILE_BYTES ADDRESS_BYTES DIE -- COMMAND...

FILE_BYTES and ADDRESS_BYTES are resource limits (0: none). DIE 1: be killed when the parent dies. Stdlib only. A
process joins by itself, before it becomes the command, so nothing it starts can be outside the groups.
"""

import os
import resource
import signal
import sys


def main(words: list[str]) -> None:
    """Never returns: becomes the command, or exits 125 with a line on standard error."""
    joins, file_bytes, address_bytes, die, _, *command = words
    try:
        for path in filter(None, joins.split(":")):
            with open(path, "w") as procs:
                procs.write("0")
        for limit, value in ((resource.RLIMIT_FSIZE, file_bytes), (resource.RLIMIT_AS, address_bytes)):
            if int(value):
                resource.setrlimit(limit, (int(value), int(value)))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if int(die):
            _die_with_parent()
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores these two, and ignoring is inherited
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.execv(command[0], command)
    except OSError as error:
        sys.stderr.write(f"launch: {error}\n")
        sys.exit(125)


def _die_with_parent() -> None:
    import ctypes

    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


if __name__ == "__main__":
    main(sys.argv[1:])
