import json
from dataclasses import replace

import numpy as np
import pytest

from qwengyre import profiles
from qwengyre.trajectory.roles import AUXILIARY, KNOWN, MAIN, Marker, Table, roles
from qwengyre.trajectory.tree import ROOT, Tree
from qwengyre.types import Kind, ModelCall, Segment, Stretch


def call(number: int, parent: int, request: dict, thread: str = "t") -> ModelCall:
    ids = np.arange(4, dtype=np.int32)
    return ModelCall(
        call=number,
        thread=thread,
        parent=parent,
        suffix=ids,
        segments=(Segment(Kind.CONTEXT, 4),),
        output=ids,
        logprobs=np.zeros(4, np.float32),
        stretches=(Stretch(0, 4, 0, "cell0.1", "stop"),),
        finish="stop",
        temperature=1.0,
        request=request,
    )


TITLE = "You are a title generator. Output only a title."
BODIES = [
    {"messages": [{"role": "system", "content": TITLE}, {"role": "user", "content": "Fix it."}]},
    {"messages": [{"role": "developer", "content": [{"type": "text", "text": TITLE}]}]},
    {"system": TITLE, "messages": [{"role": "user", "content": "Fix it."}]},
    {"system": [{"type": "text", "text": TITLE}], "messages": []},
    {"instructions": TITLE, "input": "Fix it."},
]


@pytest.mark.parametrize("body", BODIES)
def test_a_marker_in_the_first_system_text_makes_a_line_auxiliary(body):
    tree, calls = Tree(), [call(0, ROOT, body), call(1, ROOT, {"messages": [{"role": "user", "content": "Fix it."}]})]
    title, main = (tree.add_call(c)[-1] for c in calls)
    found = roles(tree, calls)
    assert found[title].role == AUXILIARY
    assert "call 0" in found[title].evidence
    assert "title generator" in found[title].evidence
    assert found[main].role == MAIN


def test_a_marker_in_a_user_or_tool_text_means_nothing():
    body = {"messages": [{"role": "user", "content": TITLE}, {"role": "tool", "content": TITLE}]}
    tree, first = Tree(), call(0, ROOT, body)
    leaf = tree.add_call(first)[-1]
    assert roles(tree, [first])[leaf].role == MAIN


def test_every_leaf_has_a_role_and_follows_the_call_that_began_its_line():
    tree, first = Tree(), call(0, ROOT, BODIES[0])
    root = tree.add_call(first)[-1]
    calls = [first, call(1, root, {}), call(2, root, {}), call(3, ROOT, {})]
    for later in calls[1:]:
        tree.add_call(later)
    found = roles(tree, calls)
    assert sorted(found) == list(tree.leaves())
    assert [found[leaf].role for leaf in sorted(found)] == [AUXILIARY, AUXILIARY, MAIN]


def test_without_requests_all_leaves_are_main():
    tree = Tree()
    leaf = tree.add_call(call(0, ROOT, BODIES[0]))[-1]
    assert roles(tree)[leaf].role == MAIN


def said(role: str, text: str) -> dict:
    """A message as the journal holds it."""
    return {"role": role, "text": text}


def test_a_recorded_system_text_is_read_too():
    tree, first = Tree(), call(0, ROOT, {"messages": [said("system", TITLE)]})
    leaf = tree.add_call(first)[-1]
    assert roles(tree, [first])[leaf].role == AUXILIARY


@pytest.mark.parametrize(
    "place", ["header:x-claude-code-agent-id", "header:x-openai-subagent", "header:x-parent-session-id"]
)
def test_a_signal_names_a_sub_agent(place):
    tree = Tree()
    calls = [call(0, ROOT, {"messages": []}), call(1, ROOT, {"messages": [], "signals": {place: "a1"}})]
    main, sub = (tree.add_call(c)[-1] for c in calls)
    found = roles(tree, calls)
    assert (found[main].role, found[sub].role) == (MAIN, "sub-agent")
    assert place in found[sub].evidence


def test_a_sub_agent_is_told_what_a_tool_call_said_and_a_summary_only_quotes_it():
    task = "Write the file sub.txt."
    giver = replace(call(0, ROOT, {}), response={"calls": [{"arguments": json.dumps({"prompt": task, "n": 1})}]})
    told = call(1, ROOT, {"messages": [said("user", f"Start-up parts.\n{task}")]})
    quoted = call(2, ROOT, {"messages": [said("user", f"So far: {task} And then more.")]})
    tree = Tree()
    leaves = [tree.add_call(c)[-1] for c in (giver, told, quoted)]
    found = roles(tree, [giver, told, quoted])
    assert [found[leaf].role for leaf in leaves] == [MAIN, "sub-agent", MAIN]
    assert "call 0" in found[leaves[1]].evidence


def test_summaries_by_signal_by_instruction_and_by_missing_tools():
    kind = "header:x-codex-turn-metadata#request_kind"
    instruction = said("user", "CRITICAL: Respond with TEXT ONLY.")
    tree, first = Tree(), call(0, ROOT, {"tools": [{}], "messages": [said("user", "Fix it.")]})
    root = tree.add_call(first)[-1]
    calls = [
        first,
        call(1, root, {"messages": [said("tool", "x"), instruction]}),
        call(2, ROOT, {"tools": [{}], "messages": [], "signals": {kind: "compaction"}}),
        call(3, ROOT, {"tools": [], "messages": [said("user", "The transcript.")]}, "short"),
        call(4, ROOT, {"tools": [{}], "messages": [], "signals": {kind: "turn"}}),
    ]
    leaves = [tree.add_call(c)[-1] for c in calls[1:]]
    found = roles(tree, calls, Table.of(profiles.told("opencode")))
    assert [found[leaf].role for leaf in leaves] == ["main-summary"] * 3 + [MAIN]


def test_a_harness_that_never_has_tools_writes_no_summaries():
    calls = [call(n, ROOT, {"tools": [], "messages": [said("user", "Fix it.")]}) for n in range(2)]
    tree = Tree()
    leaves = [tree.add_call(c)[-1] for c in calls]
    assert {roles(tree, calls)[leaf].role for leaf in leaves} == {MAIN}


def test_a_table_holds_what_a_profile_says_before_what_all_harnesses_say():
    for profile in map(profiles.read, profiles.names()):
        table = Table.of(profiles.told(profile.name))
        assert set(KNOWN.sub_agents) | set(profile.signals.sub_agent) == set(table.sub_agents)
        for place in profile.signals.kind:
            assert table.kinds[place] == profile.signals.kinds
        told = tuple(Marker(m.role, m.where, m.pattern) for m in profile.markers)
        assert table.markers == told + KNOWN.markers
    assert Table.of(profiles.told("shell")) == KNOWN
