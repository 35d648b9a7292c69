import numpy as np
import pytest

from qwengyre.trajectory.roles import AUXILIARY, MAIN, roles
from qwengyre.trajectory.tree import ROOT, Tree
from qwengyre.types import Kind, ModelCall, Segment, Stretch


def call(number: int, parent: int, request: dict) -> ModelCall:
    ids = np.arange(4, dtype=np.int32)
    return ModelCall(
        call=number,
        thread=f"t{number}",
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
