import pytest

from qwengyre.observe.timeline import Timeline, span
from qwengyre.schedule.doing import Doing, doing
from qwengyre.schedule.state import Plan
from qwengyre.sim.run import simulate
from qwengyre.sim.workload import Failures, Workload

R, T, TO, BACK, LOST, IDLE = (
    Doing.ROLLOUT,
    Doing.TRAINING,
    Doing.TO_TRAINING,
    Doing.TO_ROLLOUT,
    Doing.LOST,
    Doing.IDLE,
)


def two_cells() -> Timeline:
    timeline = Timeline()
    timeline.see(0.0, [R, R], 6, 0)
    timeline.see(10.0, [TO, R], 3, 0)
    timeline.see(12.0, [T, R], 2, 0)
    timeline.see(18.0, [BACK, R], 0, 1)
    timeline.see(20.0, [R, IDLE], 4, 1)
    timeline.see(24.0, [R, LOST], 4, 1)
    timeline.see(28.0, [R, R], 0, 2)
    return timeline


def rows(lines: list[str]) -> dict[str, str]:
    return {line[:8].strip(): line[8:] for line in lines}


def test_a_row_a_cell_and_a_character_a_slice() -> None:
    drawn = rows(two_cells().draw(8 + 14))
    assert drawn["cell 0"] == "=====/###\\===="
    assert drawn["cell 1"] == "==========--xx"
    assert drawn["live"] == "66666322204444"
    assert drawn["steps"] == "         1   2"


def test_a_part_of_the_run() -> None:
    drawn = rows(two_cells().draw(8 + 8, since=10.0, until=18.0))
    assert drawn["cell 0"] == "//######"
    assert drawn["live"] == "33222222"
    assert drawn["steps"] == "       1"


def test_a_later_end_leaves_room_so_that_runs_share_a_scale() -> None:
    drawn = rows(two_cells().draw(8 + 28, until=56.0))
    assert drawn["cell 0"] == "=====/###\\===="
    assert drawn["live"] == "66666322204444"


def test_what_is_short_and_matters_does_not_vanish() -> None:
    timeline = Timeline()
    timeline.see(0.0, [R, R], 1, 0)
    timeline.see(50.0, [LOST, TO], 1, 0)
    timeline.see(50.1, [R, TO], 1, 0)
    timeline.see(53.0, [R, R], 1, 0)
    timeline.see(100.0, [R, R], 1, 0)
    drawn = rows(timeline.draw(8 + 10))
    assert drawn["cell 0"] == "=====x===="
    assert drawn["cell 1"] == "=====/===="


def test_many_executions_are_scaled_to_a_digit_and_the_legend_says_so() -> None:
    timeline = Timeline()
    timeline.see(0.0, [R], 90, 0)
    timeline.see(5.0, [R], 1, 0)
    timeline.see(10.0, [R], 0, 0)
    lines = timeline.draw(8 + 10)
    assert rows(lines)["live"] == "9999911111"
    assert lines[-1].endswith("(9 = 90)")


def test_the_legend_names_only_what_is_drawn() -> None:
    assert two_cells().draw(8 + 14)[-1].strip() == (
        "= rollout  # training  / to training  \\ to rollout  - idle  x lost  live: unfinished executions"
    )
    assert "training" not in two_cells().draw(8 + 14, until=8.0)[-1]
    assert "legend" not in two_cells().draw(8 + 14, legend=False)[-1]


def test_a_step_without_room_is_left_out_not_run_together() -> None:
    timeline = Timeline()
    timeline.see(0.0, [T], 0, 0)
    for number in range(1, 101):
        timeline.see(float(number), [T], 0, number)
    marks = rows(timeline.draw(8 + 20))["steps"].split()
    assert [int(mark) for mark in marks] == sorted({int(mark) for mark in marks})
    assert all(1 <= int(mark) <= 100 for mark in marks)


def test_plain_ascii_within_the_width_for_any_run() -> None:
    plan = Plan(cells=40, groups_per_step=8, group_size=4, steps=6, capacity=4, phi=1)
    _, record = simulate(plan, Workload(failures=Failures(cell_life_h=8.0)), 3)
    timeline = Timeline.of_run(plan, (event for event, _ in record.entries))
    for width in (10, 60, 100):
        for line in timeline.draw(width, legend=False):
            assert line.isascii()
            assert len(line) <= max(width, 16)
    names = [line[:8].strip() for line in timeline.draw(60)]
    assert "..." in names
    assert "cell 39" in names
    assert len(names) <= 30


def test_a_run_of_the_simulator_ends_where_its_events_end() -> None:
    plan = Plan(cells=2, groups_per_step=2, group_size=2, steps=3, capacity=4)
    state, record = simulate(plan, Workload(), 1)
    timeline = Timeline.of_run(plan, (event for event, _ in record.entries))
    assert timeline.end == state.at
    assert timeline.marks[-1][1] == 3
    assert {what for changes in timeline.cells for _, what in changes} >= {"rollout", "training", "idle"}


def test_every_word_has_a_sign_and_an_empty_timeline_draws_nothing() -> None:
    from qwengyre.observe.timeline import SIGNS

    assert set(SIGNS) == set(Doing)
    assert len(set(SIGNS.values())) == len(SIGNS)
    assert Timeline().draw() == []


def test_a_cell_that_never_reported_is_away_and_one_without_work_is_idle() -> None:
    from qwengyre.schedule.state import Cell
    from qwengyre.schedule.step import start
    from qwengyre.types import Role

    state = start(Plan(cells=2, groups_per_step=1, group_size=2, steps=1, capacity=2))
    assert doing(state) == (Doing.AWAY, Doing.AWAY)
    state = state.but(cells=(Cell(Role.TRAINING, 2, incarnation=1), Cell(Role.ROLLOUT, 2, incarnation=1)))
    assert doing(state) == (Doing.IDLE, Doing.IDLE)
    assert doing(state.but(claimed=1)) == (Doing.TRAINING, Doing.IDLE)


@pytest.mark.parametrize(("seconds", "text"), [(0.0, "0 s"), (8.04, "8 s"), (90.0, "1.5 min"), (7200.0, "2 h")])
def test_times_are_for_people(seconds: float, text: str) -> None:
    assert span(seconds) == text
