"""OpenAI chat completions: `POST /v1/chat/completions`, with tools, streaming and not."""

import secrets
import time
from collections.abc import Iterable, Mapping
from typing import Any, cast

import orjson

from qwengyre.gateway.canon import Answer, Head, Message, Refusal, Request, ToolCall

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_FOLLOWED = {"messages", "tools", "model", "stream", "stream_options", "max_tokens", "max_completion_tokens"}
_CODES = {
    "too_long": ("invalid_request_error", "context_length_exceeded"),
    "unauthorized": ("authentication_error", "invalid_api_key"),
    "sealed": ("invalid_request_error", "execution_sealed"),
    "failed": ("server_error", "call_failed"),
}
Json = dict[str, Any]


class Chat:
    """The dialect of most open harnesses."""

    path = "/v1/chat/completions"

    def key(self, headers: Mapping[str, str]) -> str:
        """The bearer token."""
        scheme, _, key = headers.get("authorization", "").partition(" ")
        return key.strip() if scheme.lower() == "bearer" else ""

    def decode(self, body: bytes) -> Request:
        """See the protocol."""
        wire = _object(_loads(body), "the body")
        if wire.get("n") not in (None, 1):
            raise Refusal("invalid", f"n={wire['n']!r}: this server gives one choice a call; ask again for more", "n")
        choice = wire.get("tool_choice")
        shape = _object(wire.get("response_format") or {}, "response_format").get("type", "text")
        return Request(
            messages=_messages(wire.get("messages")),
            tools=_tools(wire.get("tools")),
            max_tokens=_max_tokens(wire),
            stream=bool(wire.get("stream")),
            include_usage=bool((wire.get("stream_options") or {}).get("include_usage")),
            constrained=choice not in (None, "auto", "none") or shape != "text",
            parse_tools=choice != "none",
            model=str(wire.get("model") or ""),
            ignored={k: v for k, v in wire.items() if k not in _FOLLOWED and v is not None},
        )

    def head(self, model: str) -> Head:
        """See the protocol."""
        return Head(f"chatcmpl-{secrets.token_hex(12)}", int(time.time()), model)

    def opening(self, head: Head) -> bytes:
        """The chunk that names the role."""
        return _chunk(head, {"role": "assistant", "content": ""})

    def ping(self, head: Head) -> bytes:
        """A chunk with an empty delta."""
        return _chunk(head, {})

    def events(self, request: Request, head: Head, answer: Answer) -> bytes:
        """Reasoning, text, tool calls, finish reason, usage where asked, [DONE]."""
        parts: list[bytes] = []
        if answer.reasoning:
            parts.append(_chunk(head, {"reasoning_content": answer.reasoning}))
        if answer.text:
            parts.append(_chunk(head, {"content": answer.text}))
        parts += (_chunk(head, {"tool_calls": [{"index": i, **_call(c)}]}) for i, c in enumerate(answer.calls))
        parts.append(_chunk(head, {}, answer.finish))
        if request.include_usage:
            parts.append(_event({**_envelope(head, "chat.completion.chunk"), "choices": [], "usage": _usage(answer)}))
        return b"".join(parts) + b"data: [DONE]\n\n"

    def body(self, request: Request, head: Head, answer: Answer) -> bytes:
        """A chat.completion object."""
        message: Json = {"role": "assistant", "content": answer.text or (None if answer.calls else "")}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.calls:
            message["tool_calls"] = [_call(c) for c in answer.calls]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": answer.finish}
        return orjson.dumps({**_envelope(head, "chat.completion"), "choices": [choice], "usage": _usage(answer)})

    def failed(self, refusal: Refusal) -> bytes:
        """An error event; clients raise on it."""
        return _event(self.error(refusal))

    def error(self, refusal: Refusal) -> Json:
        """OpenAI's error object."""
        kind, code = _CODES.get(refusal.kind, ("invalid_request_error", None))
        return {"error": {"message": refusal.message, "type": kind, "param": refusal.param, "code": code}}


def _loads(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Refusal("invalid", f"the body is not JSON: {error}") from None


def _object(value: Any, name: str) -> Json:
    if not isinstance(value, dict):
        raise Refusal("invalid", f"{name} must be an object, not {type(value).__name__}", name)
    return cast("Json", value)


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise Refusal("invalid", f"{name} must be a list, not {type(value).__name__}", name)
    return cast("list[Any]", value)


def _max_tokens(wire: Json) -> int:
    asked = next((wire[k] for k in ("max_completion_tokens", "max_tokens") if wire.get(k) is not None), 0)
    if not isinstance(asked, int) or asked < 0 or (asked == 0 and wire.get("max_tokens") == 0):
        raise Refusal("invalid", f"max_tokens={asked!r} must be a whole number above 0", "max_tokens")
    return asked


def _messages(value: Any) -> tuple[Message, ...]:
    messages = _list(value, "messages")
    if not messages:
        raise Refusal("invalid", "messages is empty: give at least one message", "messages")
    return tuple(_message(m, i) for i, m in enumerate(messages))


def _message(value: Any, at: int) -> Message:
    """Histories are long and mostly plain: the names for error messages are made where there is an error."""
    wire = cast("Json", value) if isinstance(value, dict) else _object(value, f"messages[{at}]")
    role = _ROLES.get(wire.get("role", ""))
    if role is None:
        raise Refusal("invalid", f"role={wire.get('role')!r}; known: {', '.join(_ROLES)}", f"messages[{at}].role")
    content = wire.get("content")
    text = content if isinstance(content, str) else _text(content, f"messages[{at}].content")
    if role != "assistant":
        call_id = str(wire.get("tool_call_id") or "") if role == "tool" else ""
        return Message(role, text, call_id=call_id, name=str(wire.get("name") or ""))
    reasoning = wire.get("reasoning_content") or wire.get("reasoning") or ""
    calls = _wire_calls(wire["tool_calls"], f"messages[{at}].tool_calls") if wire.get("tool_calls") else ()
    return Message(role, text, calls, reasoning=reasoning if isinstance(reasoning, str) else "")


def _text(content: Any, name: str) -> str:
    """Several text parts are joined by a newline; other media are refused."""
    return "" if content is None else "\n".join(_part(part, name) for part in _list(content, name))


def _part(part: Any, name: str) -> str:
    value = part if isinstance(part, str) else _object(part, name).get("text", _object(part, name).get("refusal"))
    if not isinstance(value, str):
        raise Refusal("invalid", f"{name} has a part that is not text; this model reads text only", name)
    return value


def _wire_calls(value: Any, name: str) -> tuple[ToolCall, ...]:
    return tuple(_wire_call(call, name) for call in _list(value, name))


def _wire_call(value: Any, name: str) -> ToolCall:
    wire = _object(value, name)
    function = _object(wire.get("function"), f"{name}.function")
    arguments = function.get("arguments") or ""
    if not isinstance(arguments, str):
        arguments = orjson.dumps(arguments).decode()
    return ToolCall(str(wire.get("id") or ""), str(function.get("name") or ""), arguments)


def _tools(value: Any) -> tuple[Json, ...]:
    """Function declarations without wire-only keys (strict, cache_control)."""
    tools: Iterable[Json] = (_object(t, "tools") for t in _list(value or [], "tools"))
    return tuple(_tool(t) for t in tools)


def _tool(wire: Json) -> Json:
    if wire.get("type", "function") != "function":
        raise Refusal("invalid", f"tools: type={wire['type']!r}; this server knows type 'function'", "tools")
    function = _object(wire.get("function"), "tools.function")
    if not isinstance(function.get("name"), str):
        raise Refusal("invalid", "tools: a function has no name", "tools")
    kept = {k: function[k] for k in ("name", "description", "parameters") if function.get(k) is not None}
    return {"type": "function", "function": kept}


def _call(call: ToolCall) -> Json:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _usage(answer: Answer) -> Json:
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": answer.cached_tokens},
    }


def _envelope(head: Head, kind: str) -> Json:
    return {"id": head.id, "object": kind, "created": head.created, "model": head.model}


def _chunk(head: Head, delta: Json, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return _event({**_envelope(head, "chat.completion.chunk"), "choices": [choice]})


def _event(value: Json) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"
