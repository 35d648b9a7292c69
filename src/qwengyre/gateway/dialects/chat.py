"""OpenAI chat completions: `POST /v1/chat/completions`, with tools, streaming and not."""

import secrets
import time
from typing import Any, cast

from qwengyre.gateway.canon import Answer, Head, Message, Refusal, Request, ToolCall
from qwengyre.gateway.dialects.base import Json, Known, Prompted
from qwengyre.gateway.dialects.wire import (
    a_count,
    a_list,
    an_object,
    arguments_of,
    dumps,
    event,
    freeform,
    freeform_arguments,
    freeform_input,
    function,
    joined,
    left_over,
    openai_error,
    stops_of,
)
from qwengyre.gateway.parse import Delta

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_FOLLOWED = frozenset(
    ("messages", "tools", "model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "stop", "n")
)


class Chat:
    """The dialect of most open harnesses."""

    path, count_path, array = "/v1/chat/completions", "", "messages"

    def decode(self, wire: Json, known: Known) -> Request:
        """See the protocol."""
        if wire.get("n") not in (None, 1):
            raise Refusal("invalid", f"n={wire['n']!r}: this server gives one choice a call; ask again for more", "n")
        choice = wire.get("tool_choice")
        shape = an_object(wire.get("response_format") or {}, "response_format").get("type", "text")
        tools, custom = _tools(wire.get("tools"))
        fresh = _messages(wire.get("messages"), known)
        asked = next((k for k in ("max_completion_tokens", "max_tokens") if wire.get(k) is not None), "max_tokens")
        return Request(
            messages=known.messages + fresh,
            tools=tools,
            max_tokens=a_count(wire.get(asked), asked),
            stream=bool(wire.get("stream")),
            include_usage=bool((wire.get("stream_options") or {}).get("include_usage")),
            constrained=choice not in (None, "auto", "none") or shape != "text",
            parse_tools=choice != "none",
            stops=stops_of(wire.get("stop"), "stop"),
            model=str(wire.get("model") or ""),
            ignored=left_over(wire, _FOLLOWED),
            wire={"custom": custom} if custom else {},
            cuts=tuple(range(len(known.messages) + 1, len(known.messages) + len(fresh) + 1)),
        )

    def head(self, model: str) -> Head:
        """See the protocol."""
        return Head(f"chatcmpl-{secrets.token_hex(12)}", int(time.time()), model)

    def stream(self, request: Request, head: Head, prompted: Prompted) -> "ChatStream":
        """See the protocol."""
        return ChatStream(request, head)

    def body(self, request: Request, head: Head, answer: Answer) -> bytes:
        """A chat.completion object."""
        message: Json = {"role": "assistant", "content": answer.text or (None if answer.calls else "")}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.calls:
            message["tool_calls"] = [_call(c, request) for c in answer.calls]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": answer.finish}
        return dumps({**_envelope(head, "chat.completion"), "choices": [choice], "usage": usage_of(answer)})

    def counted(self, tokens: int) -> Json:
        """Not a part of this protocol."""
        return {"input_tokens": tokens}

    def error(self, refusal: Refusal) -> Json:
        """OpenAI's error object."""
        return openai_error(refusal)


class ChatStream:
    """Chunks. See `Stream`."""

    def __init__(self, request: Request, head: Head) -> None:
        self._request, self._head = request, head
        self._told = {"reasoning": 0, "text": 0}

    def opening(self) -> bytes:
        """The chunk that names the role."""
        return self._chunk({"role": "assistant", "content": ""})

    def ping(self) -> bytes:
        """A chunk with an empty delta."""
        return self._chunk({})

    def more(self, delta: Delta) -> bytes:
        """A chunk."""
        self._told[delta.kind] += len(delta.text)
        return self._chunk({"reasoning_content" if delta.kind == "reasoning" else "content": delta.text})

    def events(self, answer: Answer) -> bytes:
        """Reasoning, text, tool calls, finish reason, usage where asked, [DONE]."""
        parts: list[bytes] = []
        if reasoning := answer.reasoning[self._told["reasoning"] :]:
            parts.append(self._chunk({"reasoning_content": reasoning}))
        if text := answer.text[self._told["text"] :]:
            parts.append(self._chunk({"content": text}))
        calls = [{"index": i, **_call(c, self._request)} for i, c in enumerate(answer.calls)]
        parts += (self._chunk({"tool_calls": [call]}) for call in calls)
        parts.append(self._chunk({}, answer.finish))
        if self._request.include_usage:
            usage = {"choices": [], "usage": usage_of(answer)}
            parts.append(event({**_envelope(self._head, "chat.completion.chunk"), **usage}))
        return b"".join(parts) + b"data: [DONE]\n\n"

    def failed(self, refusal: Refusal) -> bytes:
        """An error event; clients raise on it."""
        return event(openai_error(refusal))

    def _chunk(self, delta: Json, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return event({**_envelope(self._head, "chat.completion.chunk"), "choices": [choice]})


def _messages(value: Any, known: Known) -> tuple[Message, ...]:
    messages = a_list(value, "messages")
    if not messages and not known.items:
        raise Refusal("invalid", "messages is empty: give at least one message", "messages")
    return tuple(_message(m, i) for i, m in enumerate(messages, known.items))


def _message(value: Any, at: int) -> Message:
    """Histories are long and mostly plain: the names for error messages are made where there is an error."""
    wire = cast("Json", value) if isinstance(value, dict) else an_object(value, f"messages[{at}]")
    role = _ROLES.get(wire.get("role", ""))
    if role is None:
        raise Refusal("invalid", f"role={wire.get('role')!r}; known: {', '.join(_ROLES)}", f"messages[{at}].role")
    content = wire.get("content")
    text = content if isinstance(content, str) else joined(content, f"messages[{at}].content")
    if role != "assistant":
        call_id = str(wire.get("tool_call_id") or "") if role == "tool" else ""
        return Message(role, text, call_id=call_id, name=str(wire.get("name") or ""))
    reasoning = wire.get("reasoning_content") or wire.get("reasoning") or ""
    calls = _wire_calls(wire["tool_calls"], f"messages[{at}].tool_calls") if wire.get("tool_calls") else ()
    return Message(role, text, calls, reasoning=reasoning if isinstance(reasoning, str) else "")


def _wire_calls(value: Any, name: str) -> tuple[ToolCall, ...]:
    return tuple(_wire_call(call, name) for call in a_list(value, name))


def _wire_call(value: Any, name: str) -> ToolCall:
    wire = an_object(value, name)
    call_id = str(wire.get("id") or "")
    if wire.get("type") == "custom":
        custom = an_object(wire.get("custom"), f"{name}.custom")
        return ToolCall(call_id, str(custom.get("name") or ""), freeform_arguments(custom.get("input")))
    named = an_object(wire.get("function"), f"{name}.function")
    return ToolCall(call_id, str(named.get("name") or ""), arguments_of(named.get("arguments") or ""))


def _tools(value: Any) -> tuple[tuple[Json, ...], tuple[str, ...]]:
    """Declarations, and the names of those that take a text."""
    tools: list[Json] = []
    custom: list[str] = []
    for wire in (an_object(t, "tools") for t in a_list(value or [], "tools")):
        kind = wire.get("type", "function")
        if kind not in ("function", "custom"):
            raise Refusal("invalid", f"tools: type={kind!r}; this server knows 'function' and 'custom'", "tools")
        values = an_object(wire.get(kind), f"tools.{kind}")
        if kind == "custom":
            tools.append(freeform(values.get("name"), values.get("description"), "tools"))
            custom.append(values["name"])
        else:
            tools.append(function(values.get("name"), values.get("description"), values.get("parameters"), "tools"))
    return tuple(tools), tuple(custom)


def _call(call: ToolCall, request: Request) -> Json:
    if call.name in request.wire.get("custom", ()):
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": freeform_input(call)}}
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def usage_of(answer: Answer) -> Json:
    """True token counts."""
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": answer.cached_tokens},
    }


def _envelope(head: Head, kind: str) -> Json:
    return {"id": head.id, "object": kind, "created": head.created, "model": head.model}
