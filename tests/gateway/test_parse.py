"""Tool calls and reasoning out of text; what is malformed stays text."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwengyre.gateway.parse import parse

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "</tool_call> é", "b": [1, 2.0]}}\n</tool_call>'


def test_a_call_and_the_text_before_it():
    parsed = parse(f"I look.\n\n{CALL}", tools=True)
    assert parsed.text == "I look."
    ((name, arguments),) = parsed.calls
    assert name == "f"
    assert json.loads(arguments) == {"a": "</tool_call> é", "b": [1, 2.0]}


def test_several_calls_in_order():
    parsed = parse(CALL + "\n" + CALL.replace('"f"', '"g"') + "\n", tools=True)
    assert [name for name, _ in parsed.calls] == ["f", "g"]
    assert parsed.text == ""


def test_without_tools_nothing_is_looked_for():
    assert parse(CALL, tools=False).text == CALL


@pytest.mark.parametrize(
    "block",
    [
        "<tool_call>",
        "<tool_call></tool_call>",
        "<tool_call>{}</tool_call>",
        '<tool_call>{"name": ""}</tool_call>',
        '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": []}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {}}',
        '<tool_call>{"name": "f", "arguments": {}} and</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": "\\ud800"}}</tool_call>',
        "<tool_call>" + "[" * 100_000,
    ],
)
def test_a_malformed_block_stays_text(block):
    parsed = parse(f"x {block} y", tools=True)
    assert parsed.calls == ()
    assert parsed.text == f"x {block} y"


def test_a_malformed_block_does_not_hide_the_next_one():
    parsed = parse("<tool_call>{oops " + CALL, tools=True)
    assert [name for name, _ in parsed.calls] == ["f"]
    assert parsed.text == "<tool_call>{oops"


@pytest.mark.parametrize("cut", range(len(CALL)))
def test_a_call_that_is_cut_anywhere_is_text(cut):
    assert parse(CALL[:cut], tools=True).text == CALL[:cut]


@pytest.mark.parametrize(
    ("raw", "thinking", "reasoning", "text"),
    [
        ("<think>\nhm\n</think>\n\nyes", False, "hm", "yes"),
        ("hm</think>yes", True, "hm", "yes"),
        ("hm", True, "hm", ""),
        ("a <think>b</think>", False, "", "a <think>b</think>"),
    ],
)
def test_reasoning(raw, thinking, reasoning, text):
    parsed = parse(raw, tools=True, thinking=thinking)
    assert (parsed.reasoning, parsed.text, parsed.raw) == (reasoning, text, raw)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([CALL, "<tool_call>", "</tool_call>", "{", "x", "\n"]), max_size=8).map("".join))
def test_nothing_is_lost(raw):
    parsed = parse(raw, tools=True)
    if not parsed.calls:
        assert parsed.text == raw
    assert len(parsed.calls) == sum(1 for _ in parsed.calls)
    assert parsed.text.count("x") == raw.count("x")
