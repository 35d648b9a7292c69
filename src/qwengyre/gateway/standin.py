"""Short histories that stand in for long ones, and the marks that are put into text before it is rendered."""

from collections.abc import Sequence
from dataclasses import replace

from qwengyre.gateway.canon import Message, ToolCall
from qwengyre.gateway.parse import Tools

CUT = "\ufdd0"  # a Unicode non-character: where text is cut before it is encoded
ANCHOR = "\ufdd1"  # another: stands in an answer of the history for its text
STUB: Tools = ({"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}},)
"""Stands for the declarations where only their being there matters: the real ones are at the head."""
STANDIN, ANCHORED = Message("user", "x"), Message("assistant", ANCHOR)


def cleaned(text: str) -> str:
    """Without our own marks."""
    return text.replace(CUT, "\ufffd").replace(ANCHOR, "\ufffd") if CUT in text or ANCHOR in text else text


def clean(messages: Sequence[Message]) -> list[Message]:
    return [_clean_message(m) for m in messages]


def _clean_message(message: Message) -> Message:
    texts = {name: cleaned(getattr(message, name)) for name in ("text", "reasoning", "name", "call_id")}
    calls = tuple(ToolCall(cleaned(c.id), cleaned(c.name), cleaned(c.arguments)) for c in message.calls)
    return replace(message, calls=calls, **texts)


def stand_in(previous: Message) -> list[Message]:
    """A short history that ends as one ending with `previous` would: its text and reasoning do not matter."""
    if previous.role in ("system", "user"):
        return [replace(previous, text="x")]
    if not previous.calls:
        return [STANDIN, replace(previous, text=ANCHOR, reasoning="", call_id=previous.call_id and "c")]
    last = replace(previous.calls[-1], arguments=f'{{"x": "{ANCHOR}"}}')
    return [STANDIN, replace(previous, text=ANCHOR, reasoning="", calls=(*previous.calls[:-1], last))]
