import io

from rich.console import Console

from qwengyre.observe.lines import checkpoint_line
from qwengyre.observe.phases import phases, said
from qwengyre.types import Phase


def shown(told: list[tuple[float, Phase]], *, terminal: bool = False) -> list[str]:
    """Lines that appear when the phases are told at these times."""
    now = 0.0
    console = Console(file=io.StringIO(), width=120, force_terminal=terminal)
    with phases(console, lambda: now) as tell:
        for now, phase in told:  # noqa: B007 - the clock reads it
            tell(phase)
    return console.file.getvalue().splitlines()  # type: ignore


def test_a_phase_says_how_much_how_fast_and_how_long():
    assert said(Phase("x", 31e6, 93e6, "B"), 5.0) == "31.0 of 93.0 MB, 6.2 MB/s, 10 s left"
    assert said(Phase("x", 68, 272, "tensors"), 2.0) == "68 of 272 tensors, 6.0 s left"
    assert said(Phase("x", 5e3, 0, "B"), 2.0) == "5.0 kB, 2.5 kB/s"
    assert said(Phase("x", 93e6, 93e6, "B", over=True), 15.0) == "93.0 MB in 15 s"
    assert said(Phase("x", over=True), 100.0) == "done in 2 min"


def test_a_phase_that_has_just_begun_promises_nothing():
    assert said(Phase("x", 0, 93e6, "B"), 0.0) == "93.0 MB"
    assert "left" not in said(Phase("x", 1e6, 93e6, "B"), 0.1)


def test_plain_lines_are_few_and_end_with_the_time():
    ticks = [(at / 4, Phase("fetch", at * 1e6, 48e6, "B")) for at in range(48)]
    lines = shown([*ticks, (12.0, Phase("fetch", 48e6, 48e6, "B", over=True))])
    assert lines[0] == "fetch: 48.0 MB"
    assert lines[-1] == "fetch: 48.0 MB in 12 s"
    assert len(lines) == 4
    assert lines[1] == "fetch: 20.0 of 48.0 MB, 4.0 MB/s, 7.0 s left"


def test_a_message_is_one_line():
    assert shown([(0.0, Phase("ready [here]", over=True))]) == ["ready [here]"]
    assert any(
        line.endswith("ready [here]") for line in shown([(0.0, Phase("ready [here]", over=True))], terminal=True)
    )


def test_a_terminal_keeps_the_bar_with_its_time():
    lines = shown(
        [(0.0, Phase("fetch", 0, 48e6, "B")), (12.0, Phase("fetch", 48e6, 48e6, "B", over=True))], terminal=True
    )
    assert any("fetch" in line and "48.0 MB in 12 s" in line for line in lines)


def test_a_checkpoint_says_its_size_and_time():
    row = {"schema_version": 1, "step": 3, "version": 3, "seconds": 2.26, "bytes": 538_000_000}
    assert checkpoint_line(row) == "checkpoint after step 3: 538.0 MB in 2.3 s"
