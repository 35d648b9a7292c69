import io

import pytest
from observe_statuses import evaluation, move, row, status
from rich.console import Console

from qwengyre.observe.lines import evaluation_line, move_line, now_line, trend
from qwengyre.observe.progress import LiveView, PlainView, page
from qwengyre.observe.story import Story, warnings

STARTING = {"phase": "starting", "alive": 0, "waiting": ["control waits for the cells to load the model"]}


def test_tokens_a_second_are_of_the_newest_seconds_and_survive_a_restart_of_the_counter() -> None:
    story = Story()
    story.see(status(0.0, tokens={"sampled": 0, "trained": 0}))
    story.see(status(10.0, tokens={"sampled": 1000, "trained": 50}))
    assert story.rates == {"sampled": 100.0, "trained": 5.0}
    story.see(status(24.0, tokens={"sampled": 1000, "trained": 50}))
    assert story.rates["sampled"] == 0.0, "what is older than the window counts no more"
    story.see(status(25.0, tokens={"sampled": 7, "trained": 50}))
    assert story.rates == {}, "a process came back and counts anew: no rate below 0"
    story.see(status(26.0, tokens={"sampled": 27, "trained": 50}))
    assert story.rates["sampled"] == 20.0


def test_time_left_counts_steps_what_is_gone_of_this_one_and_evaluations() -> None:
    story = Story()
    story.see(status(0.0))
    assert story.left_s is None
    story.see(status(10.0, step=1))
    assert story.left_s == 30.0
    story.see(status(14.0, step=1))
    assert story.left_s == 26.0
    story.see(status(14.0, step=1, evaluations=[evaluation(0)], to_evaluate=1))
    assert story.left_s == 46.0
    running = {"step": 1, "settled": 0, "count": 100}
    story.see(status(15.0, step=1, evaluation=running))
    story.see(status(25.0, step=1, evaluation=running | {"settled": 50}))
    assert story.left_s == 40.0, "50 settled in 10 s, so 50 more in 10 s, and three steps"
    story.see(status(30.0, step=4, phase="done"))
    assert story.left_s is None


def test_a_run_that_goes_on_begins_its_timeline_where_it_is() -> None:
    story = Story()
    story.see(STARTING)
    story.see(status(500.0, step=2))
    story.see(status(510.0, step=2))
    assert story.began == 500.0
    assert story.window(40) == 500.0
    story.see(status(900.0, step=2))
    assert story.window(40) == 860.0, "a second a slice"
    story.rows = [row(0, **{"time/step": 100.0})]
    assert story.window(40) == 600.0, "or the newest steps"


def test_reward_is_averaged_over_the_newest_steps() -> None:
    story = Story()
    rows = [row(n, **{"reward/mean": n / 10}) for n in range(8)]
    story.see(status(1.0, step=8, steps=9, rows=rows))
    assert story.reward == pytest.approx(0.5)
    assert trend([0.0, 0.19, 0.5, 1.0], 40) == "0159"
    assert trend([0.0, 0.19, 0.5, 1.0], 2) == "59"


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("lifeless", {"rows": [row(0), row(1, **{"reward/live_groups": 0}), row(2, **{"reward/live_groups": 0})]}),
        ("silent", {"rows": [row(0, calls=0)]}),
        ("zero", {"rows": [row(0, **{"reward/max": 0.0}), row(1, **{"reward/max": 0.0})]}),
        ("dropped", {"rows": [row(0, **{"executions/dropped": 3})]}),
        ("endings", {"endings": {"finished": 2, "harness_crash": 2, "harness_timeout": 1}}),
        ("mismatch", {"rows": [row(0, **{"mismatch_kl/mean": 0.5})]}),
    ],
)
def test_each_warning_is_given_for_its_cause_alone(name: str, given: dict[str, object]) -> None:
    assert list(warnings(status(1.0, **given))) == [name]


def test_nothing_is_warned_of_without_a_cause() -> None:
    assert warnings(STARTING) == {}
    assert warnings(status(1.0, step=3)) == {}
    assert warnings(status(1.0, rows=[row(0, **{"reward/live_groups": 0}), row(1)])) == {}
    assert warnings(status(1.0, endings={"harness_crash": 1})) == {}, "one of one says little"
    assert warnings(status(1.0, rows=[row(0, **{"executions/dropped": 2})])) == {}, "2 of 10"


def test_a_move_tells_what_happened_and_nothing_else() -> None:
    assert move_line(move()) == "cell 1 to training at 12 s: 0.31 s (drain 0.21, kv 0.09); nothing was live there"
    told = move_line(move(live_executions=3, calls_continued=2, tokens_kept=57, kv_moved=400, kv_recomputed=9))
    assert told.endswith(
        "3 live executions, 2 calls continued with 57 tokens kept, KV of 400 tokens moved, of 9 recomputed"
    )
    assert move_line(move(live_executions=1)).endswith("1 live execution, none inside a model call")
    assert "FAILED (no route), now rollout" in move_line(move(outcome="rollout", failed="no route"))


def test_an_evaluation_in_progress_and_one_that_is_over() -> None:
    now = now_line(status(1.0, evaluation={"step": 0, "settled": 40, "count": 250}))
    assert "evaluation before training: 40 of 250 executions" in now
    assert evaluation_line(evaluation(4)) == (
        "held out after step 4: 0.300 [0.250, 0.350] over 50 tasks, greedy 0.300 [0.200, 0.400], in 20 s"
    )


def printed(statuses: list[dict[str, object]]) -> list[str]:
    file = io.StringIO()
    view = PlainView(Console(file=file, width=80))
    for each in statuses:
        view(each)
    view.close()
    return file.getvalue().splitlines()


def test_plain_lines_tell_each_step_move_evaluation_and_warning_once() -> None:
    lifeless = [row(n, **{"reward/live_groups": 0}) for n in range(2)]
    news = {"moves": [move()], "evaluations": [evaluation(0)], "deaths": ["cell 1 died: restarted"]}
    shown = printed([STARTING, status(1.0), *[status(9.0 + n, step=2, rows=lifeless, **news) for n in range(3)]])
    for part in ("step 1:", "step 2:", "cell 1 to training", "held out before", "WARNING: no live group", "died"):
        assert sum(part in line for line in shown) == 1, (part, shown)
    assert shown[0] == "control waits for the cells to load the model"


def test_plain_lines_say_now_and_then_what_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100, 1000, 20))
    monkeypatch.setattr("qwengyre.observe.progress.time.monotonic", lambda: next(clock))
    shown = printed(
        [
            status(1.0, tokens={"sampled": 0}),
            status(11.0, step=1, tokens={"sampled": 900}, backlog=[3, 1]),
        ]
    )
    assert shown[-1] == (
        "[    11 s] step 2 of 4: 4 executions running, 2 queued, 2 ended, 4 micro-steps to train; cells: 2 rollout; "
        "tokens/s: 90 sampled; reward 0.250 over the newest 1 step; about 30 s left"
    )


def test_the_live_page_shows_everything_within_the_width() -> None:
    story = Story()
    told = status(
        9.0,
        step=1,
        doing=["training", "rollout"],
        tokens={"sampled": 900},
        moves=[move()],
        evaluations=[evaluation(0)],
        endings={"harness_crash": 8},
    )
    story.see(status(0.0))
    story.see(told)
    for width in (60, 120):
        console = Console(file=io.StringIO(), width=width)
        console.print(page(story, told, width))
        file = console.file
        assert isinstance(file, io.StringIO)
        text = file.getvalue()
        assert all(len(line) <= width for line in text.splitlines())
        for part in ("step 2 of 4", "about 30 s left", "reward", "4 executions running", "100 sampled", "cell 1  =",
                     "live", "held out before", "waiting:", "WARNING", "2/2"):  # fmt: skip
            assert part in text, (part, text)


def test_the_live_page_runs_on_a_terminal_and_says_lines_above_itself() -> None:
    file = io.StringIO()
    view = LiveView(Console(file=file, width=100, force_terminal=True))
    view(STARTING)
    view(status(1.0))
    view(status(2.0, step=1))
    view.say("a line [with] brackets")
    view.close()
    assert "a line [with] brackets" in file.getvalue()
    assert "step 2 of 4" in file.getvalue()


def test_on_a_low_terminal_fewer_steps_are_shown() -> None:
    story, told = Story(), status(9.0, step=9, steps=10)
    story.see(status(0.0))
    story.see(told)
    shown = {}
    for height in (18, 60):
        file = io.StringIO()
        Console(file=file, width=100).print(page(story, told, 100, height))
        shown[height] = file.getvalue().splitlines()
    assert len(shown[18]) < len(shown[60])
    assert len(shown[18]) <= 18
    assert sum(line.endswith("10 s") for line in shown[60]) >= 8
