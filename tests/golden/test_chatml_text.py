"""The shipped chat template, to the byte: what models are trained on must not change unnoticed."""

from itertools import pairwise
from pathlib import Path

from jinja2.sandbox import ImmutableSandboxedEnvironment
from transformers.utils.chat_template_utils import _compile_jinja_template

import qwengyre.model

TEMPLATE = (Path(qwengyre.model.__file__).parent / "templates" / "chatml_tools.jinja").read_text()
TOOLS = [{"type": "function", "function": {"name": "bash", "description": "Run <it> & é.", "parameters": {}}}]
TALK = [
    {"role": "system", "content": "You work."},
    {"role": "user", "content": " Do it.\n"},
    {
        "role": "assistant",
        "content": "First.",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "bash", "arguments": {"cmd": "ls 'é'", "n": 1}}},
            {"id": "b", "type": "function", "function": {"name": "bash", "arguments": "{broken"}},
        ],
    },
    {"role": "tool", "tool_call_id": "a", "content": "x\n"},
    {"role": "tool", "tool_call_id": "b", "content": ""},
    {"role": "assistant", "content": "Done."},
]
SIGNATURES = """# Tools

You may call functions to do the task. Their signatures are given inside <tools></tools>, one JSON object a line:
<tools>
{"type": "function", "function": {"name": "bash", "description": "Run <it> & é.", "parameters": {}}}
</tools>

To call a function, answer with its name and its arguments as one JSON object inside <tool_call></tool_call>:
<tool_call>
{"name": <function name>, "arguments": <object with the arguments>}
</tool_call>"""
TURNS = """<|im_start|>user
 Do it.
<|im_end|>
<|im_start|>assistant
First.
<tool_call>
{"name": "bash", "arguments": {"cmd": "ls 'é'", "n": 1}}
</tool_call>
<tool_call>
{"name": "bash", "arguments": {broken}
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
x

</tool_response><|im_end|>
<|im_start|>user
<tool_response>

</tool_response><|im_end|>
<|im_start|>assistant
Done.<|im_end|>
"""


def render(messages, tools=None, opened=False) -> str:
    template = _compile_jinja_template(TEMPLATE)
    assert isinstance(template.environment, ImmutableSandboxedEnvironment)
    return template.render(messages=messages, tools=tools, add_generation_prompt=opened)


def test_with_tools():
    head = f"<|im_start|>system\nYou work.\n\n{SIGNATURES}<|im_end|>\n"
    assert render(TALK, TOOLS) == head + TURNS
    assert render(TALK, TOOLS, opened=True) == head + TURNS + "<|im_start|>assistant\n"


def test_tools_without_a_system_message_have_a_system_turn():
    assert render(TALK[1:], TOOLS) == f"<|im_start|>system\n{SIGNATURES}<|im_end|>\n" + TURNS


def test_without_tools_nothing_is_added():
    assert render(TALK[1:2], opened=True) == "<|im_start|>user\n Do it.\n<|im_end|>\n<|im_start|>assistant\n"
    assert render(TALK[:1]) == "<|im_start|>system\nYou work.<|im_end|>\n"


def test_more_messages_never_change_earlier_text():
    for tools in (None, TOOLS):
        texts = [render(TALK[:k], tools) for k in range(1, len(TALK) + 1)]
        assert all(b.startswith(a) for a, b in pairwise(texts))
