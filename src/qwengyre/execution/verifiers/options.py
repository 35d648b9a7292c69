"""How a task wants its work graded: `[metadata.verifier]` of task.toml, read and checked by its reader."""

from dataclasses import dataclass

from qwengyre.types import Query

KINDS = ("reward", "pytest", "ctrf")


@dataclass(frozen=True)
class Options:
    """`ids` is the fixed list of test ids: the denominator of `pytest` and `ctrf`, whatever a report holds.

    The rest is for `pytest`. `test_s`: most time of one test, or of importing one test file. `python`: the interpreter
    inside. `imports`: folders of the work that tests import from, relative to the workdir. `paths`: folders inside
    with what the tests depend on. `plugins`: pytest plug-ins found there. `place`: where in the work the tests folder
    is laid, "" for nowhere: it is at /tests in any case.
    """

    kind: str = "reward"
    ids: tuple[str, ...] = ()
    test_s: float = 60.0
    python: str = "python3"
    imports: tuple[str, ...] = (".",)
    paths: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()
    place: str = ""


def of(query: Query) -> Options:
    """A query's options; those of reward files when its task set says nothing."""
    return query.metadata.get("verifier") or Options()
