"""Reading JSON of unknown shape, with the name of what is wrong; and what several dialects say in the same words."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import orjson

from qwengyre.gateway.canon import Refusal, ToolCall
from qwengyre.gateway.dialects.base import Json

CODES = {
    "too_long": ("invalid_request_error", "context_length_exceeded"),
    "unauthorized": ("authentication_error", "invalid_api_key"),
    "sealed": ("invalid_request_error", "execution_sealed"),
    "failed": ("server_error", "call_failed"),
}


def openai_error(refusal: Refusal) -> Json:
    """OpenAI's error object."""
    kind, code = CODES.get(refusal.kind, ("invalid_request_error", None))
    return {"error": {"message": refusal.message, "type": kind, "param": refusal.param, "code": code}}


def an_object(value: Any, name: str) -> Json:
    """`value`, which must be an object."""
    if not isinstance(value, dict):
        raise Refusal("invalid", f"{name} must be an object, not {_kind(value)}", name)
    return cast("Json", value)


def a_list(value: Any, name: str) -> list[Any]:
    """`value`, which must be a list."""
    if not isinstance(value, list):
        raise Refusal("invalid", f"{name} must be a list, not {_kind(value)}", name)
    return cast("list[Any]", value)


def a_count(value: Any, name: str) -> int:
    """`value`, which must be a whole number above 0; 0 where it is not given."""
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise Refusal("invalid", f"{name}={value!r} must be a whole number above 0", name)
    return value


def stops_of(value: Any, name: str) -> tuple[str, ...]:
    """Stop texts: none, one or several."""
    values = [value] if isinstance(value, str) else a_list([] if value is None else value, name)
    if not all(isinstance(v, str) for v in values):
        raise Refusal("invalid", f"{name} must be a text or a list of texts", name)
    return tuple(v for v in values if v)


def joined(content: Any, name: str) -> str:
    """A text, or the texts of a list of parts, joined by a newline; "" for none. Other media are refused."""
    if isinstance(content, str):
        return content
    return "" if content is None else "\n".join(_part(part, name) for part in a_list(content, name))


def _part(part: Any, name: str) -> str:
    if isinstance(part, str):
        return part
    values = an_object(part, name)
    text = values.get("text", values.get("refusal"))
    if not isinstance(text, str):
        kind = values.get("type", "unknown")
        raise Refusal("invalid", f"{name} has a part of type {kind!r}; this model reads text only", name)
    return text


def function(name: Any, description: Any, parameters: Any, where: str) -> Json:
    """A canonical tool declaration, without wire-only keys (strict, cache_control)."""
    if not isinstance(name, str) or not name:
        raise Refusal("invalid", f"{where}: a function has no name", where)
    kept = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": {k: v for k, v in kept.items() if v is not None}}


def freeform(name: Any, description: Any, where: str) -> Json:
    """A custom tool, which takes a text instead of JSON, as a function of one text."""
    schema = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    return function(name, description, schema, where)


def freeform_input(call: ToolCall) -> str:
    """The text for a custom tool."""
    try:
        value = orjson.loads(call.arguments)
    except orjson.JSONDecodeError:
        return call.arguments
    text = cast("Json", value).get("input") if isinstance(value, dict) else None
    return text if isinstance(text, str) else call.arguments


def freeform_arguments(text: Any) -> str:
    """The inverse of `freeform_input`, for an echo."""
    return dumps({"input": text if isinstance(text, str) else ""}).decode()


def arguments_of(value: Any) -> str:
    """Arguments as JSON text, whatever form they come in."""
    return value if isinstance(value, str) else dumps({} if value is None else value).decode()


def left_over(wire: Mapping[str, Any], followed: Sequence[str] | frozenset[str]) -> Json:
    """The client's wishes that are recorded and not followed."""
    return {k: v for k, v in wire.items() if k not in followed and v is not None}


def dumps(value: Any) -> bytes:
    """JSON bytes."""
    return orjson.dumps(value)


def event(value: Json, kind: str = "") -> bytes:
    """A server-sent event."""
    return (b"event: " + kind.encode() + b"\n" if kind else b"") + b"data: " + dumps(value) + b"\n\n"


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__
