"""When a cell goes to train, and when it comes back."""

from collections.abc import Callable

from qwengyre.schedule import events as ev
from qwengyre.schedule.state import Phase
from qwengyre.types import Role


def roles(run) -> list[str]:
    return [str(cell.role) for cell in run.state.cells]


def test_lends_one_cell_at_a_time_core_first_when_the_rest_has_room(begin: Callable) -> None:
    run = begin(cells=3, groups_per_step=3, capacity=2)
    run.finish(0)
    assert run.state.waterlevel == 4
    assert run.backlog(pending=1)[-1].cell == 0
    run.backlog(pending=1)
    assert run.moves() == [], "transfers are serial"
    run.arrive(0, Role.TRAINING)
    assert run.moves() == [], "w = 4 > C_R - C_e = 2"
    run.end((1, 0))
    assert run.moves() == []
    run.end((1, 1))
    assert roles(run) == ["training", "to_training", "rollout"]


def test_behind_a_gate_a_further_cell_is_lent_only_for_enough_data(begin: Callable) -> None:
    run = begin(kind="gyre", cells=3, standalone=1, groups_per_step=3, capacity=6)
    run.finish(0)
    run.backlog(pending=1)
    run.arrive(0, Role.TRAINING)
    assert roles(run)[:3] == ["training", "to_training", "rollout"], "one micro-step for the one that trains"
    run.arrive(1, Role.TRAINING)
    assert run.moves() == [], "one for the two that train"
    run.backlog(pending=2)
    assert roles(run)[2] == "to_training"


def test_lends_nothing_without_unclaimed_data(begin: Callable) -> None:
    run = begin(cells=3, groups_per_step=2, capacity=4)
    run.finish(0)
    assert run.backlog(pending=0, claimed=2) == ()
    assert run.backlog(pending=1, claimed=1)[-1].cell == 0


def test_lends_nothing_while_a_cell_returns(begin: Callable) -> None:
    run = begin(cells=2, groups_per_step=1, capacity=2, phi=1)
    run.finish(0)
    run.train()
    run.send(ev.Published, 1)
    assert roles(run) == ["to_rollout", "rollout"]
    run.finish(1)
    assert run.backlog(pending=2) == ()
    run.end((2, 0), (2, 1))
    run.arrive(0, Role.ROLLOUT)
    assert run.moves() == [(0, "training")]


def test_at_the_end_of_a_burst_all_return(begin: Callable) -> None:
    run = begin(cells=3, groups_per_step=1, capacity=2)
    run.finish(0)
    run.train()
    run.send(ev.Published, 1)
    assert run.moves() == [(0, "rollout")]


def test_the_core_stays_iff_the_next_batch_is_ready_and_the_rest_has_room(begin: Callable) -> None:
    for capacity, ready, stays in ((4, (0, 1, 2, 3), True), (3, (0, 1, 2, 3), False), (8, (0, 1, 2), False)):
        run = begin(cells=2, groups_per_step=2, capacity=capacity, phi=1)
        run.finish(*ready)
        run.train()
        run.send(ev.Published, 1)
        assert run.state.waterlevel == (4 if len(ready) == 4 else 6)
        assert roles(run)[0] == ("training" if stays else "to_rollout")


def test_after_a_loss_the_cell_that_joined_last_returns_at_once_and_none_is_lent(begin: Callable) -> None:
    run = begin(cells=4, groups_per_step=3, capacity=2)
    run.finish(0)
    run.backlog(pending=2)
    run.arrive(0, Role.TRAINING)
    run.backlog(pending=1, claimed=1)
    run.arrive(1, Role.TRAINING)
    assert run.state.waterlevel == run.state.rollout_capacity == 4
    run.send(ev.CellLost, 3, 1)
    assert run.moves() == [(1, "rollout")]
    assert roles(run) == ["training", "to_rollout", "rollout", "lost"]
    run.arrive(1, Role.ROLLOUT)
    assert run.moves() == []
    assert not run.state.homeless


def test_the_core_returns_too_when_it_is_the_last(begin: Callable) -> None:
    run = begin(cells=2, groups_per_step=2, capacity=2)
    run.finish(0)
    run.backlog(pending=2)
    run.arrive(0, Role.TRAINING)
    run.backlog(pending=0)
    run.send(ev.CellLost, 1, 1)
    assert run.moves() == [(0, "rollout")]
    run.arrive(0, Role.ROLLOUT)
    assert not run.state.homeless
    run.finish(1)
    assert run.backlog(pending=2)[-1].cell == 0


def test_the_core_closes_a_trained_step_before_it_returns(begin: Callable) -> None:
    run = begin(cells=2, groups_per_step=1, capacity=2, phi=1)
    run.finish(0)
    run.backlog(pending=2)
    run.arrive(0, Role.TRAINING)
    run.backlog(pending=0, claimed=1)
    run.send(ev.CellLost, 1, 1)
    assert run.moves() == []
    run.backlog(pending=0)
    assert run.state.phase is Phase.CLOSING


def test_a_restarted_middle_cell_waits_while_a_later_one_trains(begin: Callable) -> None:
    run = begin(cells=3, groups_per_step=1, capacity=4, standalone=1)
    run.finish(0)
    for cell in range(3):
        run.backlog(pending=1)
        run.arrive(cell, Role.TRAINING)
    run.backlog(pending=0, claimed=1)
    run.send(ev.CellLost, 1, 1)
    assert roles(run) == ["training", "lost", "training", "rollout"]
    run.send(ev.CellReady, 1, 2, 4)
    assert run.state.cells[1].waits
    assert run.moves() == []
    run.backlog(pending=1)
    assert run.moves() == [(1, "training")], "it may go straight to train"
    assert run.news[-1].incarnation == 2


def test_a_waiting_cell_rolls_out_when_the_burst_is_over(begin: Callable) -> None:
    run = begin(cells=3, groups_per_step=1, capacity=4, standalone=1)
    run.finish(0)
    for cell in range(3):
        run.backlog(pending=1)
        run.arrive(cell, Role.TRAINING)
    run.backlog(pending=0, claimed=1)
    run.send(ev.CellLost, 1, 1)
    run.send(ev.CellReady, 1, 2, 4)
    run.backlog(pending=0)
    run.send(ev.StepClosed, 0)
    run.send(ev.Published, 1)
    assert roles(run) == ["to_rollout", "rollout", "to_rollout", "rollout"]


def test_a_lost_core_stops_training_until_the_roll_back(begin: Callable) -> None:
    run = begin(cells=2, groups_per_step=1, capacity=4)
    run.finish(0)
    run.backlog(pending=2)
    run.arrive(0, Role.TRAINING)
    run.send(ev.CellLost, 0, 1)
    run.send(ev.CellReady, 0, 2, 4)
    run.send(ev.Backlog, 0, 0, 0, 2)
    assert (run.state.phase, roles(run)[0], run.moves()) == (Phase.OPEN, "lost", [])
    run.send(ev.RolledBack, 0, 1)
    run.send(ev.CellReady, 0, 2, 4)
    run.send(ev.CellReady, 1, 1, 4)
    assert roles(run) == ["rollout", "rollout"]
    assert run.backlog(pending=2)[-1].cell == 0


def test_a_failed_move_is_asked_again(begin: Callable) -> None:
    run = begin(cells=1, groups_per_step=1, steps=2)
    run.finish(0)
    run.backlog(pending=2)
    first = run.news[-1]
    run.arrive(0, Role.ROLLOUT)
    assert run.moves() == [(0, "training")]
    assert run.news[-1].id != first.id
    run.arrive(0, Role.TRAINING)
    run.train()
    run.send(ev.Published, 1)
    run.arrive(0, Role.TRAINING)
    assert run.moves() == [(0, "rollout")], "w > C_R: it must return"


def test_async_cells_always_train_and_never_roll_out(begin: Callable) -> None:
    run = begin("async", training=2, cells=3, groups_per_step=1, capacity=4)
    assert roles(run) == ["to_training", "rollout", "rollout"]
    run.arrive(0, Role.TRAINING)
    assert run.moves() == [(1, "training")]
    run.arrive(1, Role.TRAINING)
    run.finish(0)
    run.backlog(pending=5)
    assert run.moves() == []
    run.train()
    run.send(ev.Published, 1)
    assert roles(run) == ["training", "training", "rollout"]
    run.send(ev.CellLost, 2, 1)
    assert run.moves() == []


def test_colocate_waits_for_the_bursts_data_and_suspends_the_rest(begin: Callable) -> None:
    run = begin("colocate", cells=2, groups_per_step=1, mu=2, phi=1, capacity=3)
    assert run.state.waterlevel == 6
    run.finish(0)
    assert run.state.admitted == 1
    assert run.backlog(pending=2) == (), "one of the two steps of the burst has no group yet"
    run.finish(2)
    assert run.moves() == [(0, "training"), (1, "training")]
    assert len(run.state.cells[0].homes) + len(run.state.cells[1].homes) == 2, "suspended in place"
    run.arrive(1, Role.TRAINING)
    run.arrive(0, Role.TRAINING)
    run.train()
    run.train()
    run.send(ev.Published, 1)
    assert run.moves() == [(1, "rollout"), (0, "rollout")]


def test_colocate_admits_a_step_as_a_whole(begin: Callable) -> None:
    run = begin("colocate", groups_per_step=2)
    run.finish(0)
    assert run.admitted() == []
    run.finish(1)
    assert run.admitted() == [(0, 0), (1, 0)]


def test_a_smaller_capacity_takes_cells_back(begin: Callable) -> None:
    run = begin(cells=2, groups_per_step=3, capacity=8)
    run.finish(0)
    run.backlog(pending=2)
    run.arrive(0, Role.TRAINING)
    run.send(ev.Capacity, 1, 3)
    assert run.moves() == [(0, "rollout")]


def test_complete_data_are_trained_though_the_look_ahead_has_no_room(begin: Callable) -> None:
    run = begin(kind="colocate-streaming", cells=2, groups_per_step=2, capacity=4, phi=1)
    run.finish(0)
    run.end((2, 0))
    run.backlog(pending=3)
    assert roles(run) == ["rollout", "rollout"]
    run.finish(1)
    run.backlog(pending=6)
    assert roles(run) == ["to_training", "to_training"]
    assert sum(len(cell.homes) for cell in run.state.cells) == 3, "what lives is suspended in place"
