import pytest

from qwengyre.cluster.record import GroupSummary, StepRecord


def test_a_row_says_what_was_trained_against_what_was_dispatched() -> None:
    record = StepRecord(3, 2, opened=1.0, closed=4.0)
    record.admit(GroupSummary(0, 3, (0.0, 1.0, 0.0), 1, 4, 30, 9, 400, (10, 30, 50), (10, 30, 50)))
    record.admit(GroupSummary(1, 2, (0.5, 0.5), 0, 0, 0, 3, 0, (5, 5), ()))
    record.add({"targets": 20.0, "tokens": 200.0, "ratio": 20.0, "ratio_squared": 20.0, "clipped": 5.0}, 1.0)
    record.add({"targets": 10.0, "tokens": 50.0, "ratio": 40.0, "ratio_squared": 160.0, "clipped": 1.0}, 1.0)
    row = record.row()
    assert (row["tokens/trained"], row["tokens/flat"], row["tokens/targets"]) == (250, 400, 30)
    assert (row["length/mean"], row["length/trained"]) == (20, 30)
    assert row["clip_share/mean"] == pytest.approx(6 / 30)
    assert row["effective_sample_size/mean"] == pytest.approx(60**2 / (30 * 180))
    assert (row["staleness/max"], row["trajectories"]) == (1, 4)


def test_a_step_that_trains_nothing_has_a_row_too() -> None:
    row = StepRecord(0, 0, opened=0.0).row()
    assert row["effective_sample_size/mean"] == 1.0
    assert row["length/trained"] == 0.0
