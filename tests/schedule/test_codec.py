"""What is written is read back, exactly."""

import dataclasses
import json
import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwengyre.errors import JournalError
from qwengyre.schedule.actions import ACTIONS, Action, Place
from qwengyre.schedule.codec import decode, decode_action, decode_event, encode
from qwengyre.schedule.events import EVENTS, Event, Placed, Settled
from qwengyre.schedule.state import Plan, State
from qwengyre.types import ExecutionId, Verdict

EXECUTIONS = st.builds(ExecutionId, st.integers(-99, 9999), st.integers(0, 64))
st.register_type_strategy(ExecutionId, EXECUTIONS)
st.register_type_strategy(float, st.floats(allow_nan=False))
ANY_EVENT = st.one_of([st.builds(kind) for kind in EVENTS.values()])
ANY_ACTION = st.one_of([st.builds(kind) for kind in ACTIONS.values()])
QUICK = settings(max_examples=200, deadline=None, derandomize=True, database=None)


@QUICK
@given(ANY_EVENT)
def test_events_survive_json(event: Event) -> None:
    assert decode_event(json.loads(json.dumps(encode(event)))) == event


@QUICK
@given(ANY_ACTION)
def test_actions_survive_json(action: Action) -> None:
    assert decode_action(json.loads(json.dumps(encode(action)))) == action


def test_every_type_is_known_by_its_name() -> None:
    for known, parent in ((EVENTS, Event), (ACTIONS, Action)):
        assert {kind.type for kind in parent.__subclasses__()} == set(known)


def test_a_state_survives_json(begin: Callable) -> None:
    run = begin(cells=3, standalone=1, groups_per_step=3, phi=1, capacity=2)
    run.finish(0)
    run.backlog(pending=1)
    run.void(1)
    for state in (run.state, begin("async", cells=2).state):
        text = json.dumps(encode(state))
        assert decode(State, json.loads(text)) == state
        assert json.dumps(encode(decode(State, json.loads(text)))) == text


def test_the_wire_form_is_plain_and_readable() -> None:
    event = Settled(1.5, ExecutionId(12, 3), Verdict.SCORED, 0.5)
    line = {"type": "settled", "at": 1.5, "execution": "12-3", "verdict": "scored", "score": 0.5}
    assert encode(event) == line
    assert encode(Place("place-7", ExecutionId(0, 1), 2)) == {
        "type": "place",
        "id": "place-7",
        "execution": "0-1",
        "cell": 2,
    }


def test_a_number_that_json_lacks() -> None:
    event = Settled(0.0, ExecutionId(0, 0), Verdict.DROPPED, math.nan)
    back = decode_event(json.loads(json.dumps(encode(event), allow_nan=False)))
    assert isinstance(back, Settled)
    assert math.isnan(back.score)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"type": "plced", "at": 0.0}, "did you mean 'placed'"),
        ({"at": 0.0}, "unknown event"),
        ([1], "unknown event"),
        ("placed", "unknown event"),
        ({"type": ["placed"]}, "unknown event"),
        ({"type": "placed", "at": 0.0}, "the fields are"),
        ({"type": "placed", "at": 0.0, "execution": "0-0", "more": 1}, "the fields are"),
        ({"type": "placed", "at": "soon", "execution": "0-0"}, "could not convert"),
        ({"type": "placed", "at": True, "execution": "0-0"}, "is no number"),
        ({"type": "placed", "at": 0.0, "execution": "0"}, "not enough values"),
        ({"type": "placed", "at": 0.0, "execution": 7}, "no Placed can be read"),
        ({"type": "step_closed", "at": 0.0, "step": 1.0}, "is not of type int"),
        ({"type": "step_closed", "at": 0.0, "step": True}, "is not of type int"),
        ({"type": "moved", "at": 0.0, "cell": 0, "role": "resting"}, "not a valid Role"),
    ],
)
def test_what_cannot_be_read_is_a_journal_error(value: object, message: str) -> None:
    with pytest.raises(JournalError, match=message):
        decode_event(value)


def test_an_unknown_action_is_a_journal_error() -> None:
    with pytest.raises(JournalError, match="unknown action"):
        decode_action({"type": "placed", "id": "x"})


def test_what_cannot_be_written_is_a_journal_error() -> None:
    with pytest.raises(JournalError, match="cannot write a complex"):
        encode(Placed(1j, ExecutionId(0, 0)))  # pyright: ignore[reportArgumentType]


def test_a_plan_with_a_missing_letter_is_refused() -> None:
    plan = Plan.for_policy("elastic", cells=1, groups_per_step=1, group_size=2, steps=1, capacity=1)
    value = encode(plan)
    assert decode(Plan, value) == plan
    for field in dataclasses.fields(Plan):
        with pytest.raises(JournalError):
            decode(Plan, {name: item for name, item in value.items() if name != field.name})
