"""Tool calls and reasoning out of text; what is malformed stays text."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwengyre.gateway.parse import Parsed, Parser, parse

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


XML = (
    "<tool_call>\n<function=f>\n<parameter=a>\nx <b>\n</parameter>\n"
    "<parameter=n>\n5\n</parameter>\n</function>\n</tool_call>"
)
NUMBER = {"type": "object", "properties": {"a": {"type": "string"}, "n": {"type": "integer"}}}
DECLARED = [{"type": "function", "function": {"name": "f", "parameters": NUMBER}}]


def test_a_call_written_as_tags_is_typed_by_its_declaration():
    parsed = parse(f"Look.\n{XML}", tools=DECLARED)
    ((name, arguments),) = parsed.calls
    assert (parsed.text, name, json.loads(arguments)) == ("Look.", "f", {"a": "x <b>", "n": 5})
    assert json.loads(parse(XML, tools=True).calls[0][1]) == {"a": "x <b>", "n": "5"}
    assert not parse(XML.replace("</parameter>\n</function>", "</function>"), tools=True).calls


def test_a_call_cut_by_the_limit_leaks_no_markup():
    for text in (CALL, XML):
        for end in range(len("<tool_call>"), len(text)):
            parsed = parse("Look.\n" + text[:end], tools=True, cut=True)
            assert (parsed.text, parsed.calls) == ("Look.\n", ())


WHOLE = f"<think>\n a \n</think>\n\nI look. \n\n{CALL}\n{XML}\n<tool_call> no"
pieces = st.lists(
    st.sampled_from(
        ["<think>", "</think>", CALL, XML, "<tool_call>", "</tool_call>", "\n", " ", "a", "{", "<th", "<t"]
    ),
    max_size=8,
).map("".join)


def said(parser: Parser, parts: list[str], cut: bool) -> Parsed:
    deltas = [d for part in parts for d in parser.feed(part)]
    deltas += parser.close(cut=cut)
    text = {kind: "".join(d.text for d in deltas if d.kind == kind) for kind in ("text", "reasoning")}
    return Parsed(
        "".join(parts), text["text"], tuple((d.name, d.text) for d in deltas if d.kind == "call"), text["reasoning"]
    )


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("cut", [False, True])
def test_streamed_and_final_are_the_same_at_every_cut(thinking, cut):
    for end in range(len(WHOLE) + 1):
        text = WHOLE[:end]
        final = parse(text, tools=DECLARED, thinking=thinking, cut=cut)
        for parts in ([*text], [text[: end // 2], text[end // 2 :]], [text[i : i + 7] for i in range(0, end, 7)]):
            assert said(Parser(tools=DECLARED, thinking=thinking), parts, cut) == final


@given(pieces, st.lists(st.integers(1, 9)), st.booleans(), st.booleans(), st.booleans())
@settings(max_examples=200, deadline=None)
def test_streamed_and_final_are_the_same_for_any_text(text, sizes, tools, thinking, cut):
    parts, rest = [], text
    for size in sizes:
        parts, rest = [*parts, rest[:size]], rest[size:]
    parser = Parser(tools=tools, thinking=thinking)
    assert said(parser, [*parts, rest], cut) == parse(text, tools=tools, thinking=thinking, cut=cut)


def test_text_comes_before_its_end_is_there():
    parser = Parser(tools=True)
    assert "".join(d.text for d in parser.feed("I look at the")) == "I look at the"
    assert parser.feed(" <tool_") == []
