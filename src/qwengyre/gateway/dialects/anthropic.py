"""Anthropic messages: `POST /v1/messages` (with or without `?beta=true`) and `/v1/messages/count_tokens`."""

import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from qwengyre.gateway.canon import Answer, Head, Message, Refusal, Request, ToolCall
from qwengyre.gateway.dialects.base import Json, Known, Prompted
from qwengyre.gateway.dialects.wire import (
    a_count,
    a_list,
    an_object,
    arguments_of,
    dumps,
    event,
    function,
    left_over,
    stops_of,
)
from qwengyre.gateway.parse import Delta

_FOLLOWED = frozenset(("messages", "system", "tools", "tool_choice", "model", "stream", "max_tokens", "stop_sequences"))
_BILLING = "x-anthropic-billing-header:"
"""A line that the client puts first; it changes with every thread and means nothing to a model."""
_KINDS = {
    "too_long": "invalid_request_error",
    "invalid": "invalid_request_error",
    "unauthorized": "authentication_error",
    "not_found": "not_found_error",
    "sealed": "invalid_request_error",
    "too_large": "request_too_large",
    "failed": "api_error",
}
_FINISH = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class Anthropic:
    """The dialect of Claude Code. A thinking block's signature names the answer that it comes from."""

    path, count_path, array = "/v1/messages", "/v1/messages/count_tokens", "messages"

    def decode(self, wire: Json, known: Known) -> Request:
        """See the protocol."""
        choice = an_object(wire.get("tool_choice") or {}, "tool_choice").get("type", "auto")
        shape = an_object(wire.get("output_config") or {}, "output_config").get("format")
        talk = list(known.messages)
        cuts: list[int] = []
        items = a_list(wire.get("messages"), "messages")
        if not items and not known.items:
            raise Refusal("invalid", "messages: at least one message is required", "messages")
        for at, item in enumerate(items, known.items):
            talk += _messages(an_object(item, f"messages.{at}"), f"messages.{at}")
            cuts.append(len(talk))
        system = _system(wire.get("system"))
        return Request(
            messages=(*system, *talk),
            tools=_tools(wire.get("tools")),
            max_tokens=a_count(wire.get("max_tokens"), "max_tokens"),
            stream=bool(wire.get("stream")),
            include_usage=True,
            constrained=choice in ("any", "tool") or shape is not None,
            parse_tools=choice != "none",
            stops=stops_of(wire.get("stop_sequences"), "stop_sequences"),
            model=str(wire.get("model") or ""),
            ignored=left_over(wire, _FOLLOWED),
            wire={"head": len(system)},
            cuts=tuple(cuts),
        )

    def head(self, model: str) -> Head:
        """See the protocol."""
        return Head(f"msg_{secrets.token_hex(12)}", int(time.time()), model)

    def stream(self, request: Request, head: Head, prompted: Prompted) -> "AnthropicStream":
        """See the protocol."""
        return AnthropicStream(head, prompted)

    def body(self, request: Request, head: Head, answer: Answer) -> bytes:
        """A message object."""
        return dumps(_message(head, answer, list(_blocks(head, answer))))

    def counted(self, tokens: int) -> Json:
        """The length of a prompt."""
        return {"input_tokens": tokens}

    def error(self, refusal: Refusal) -> Json:
        """Anthropic's error object."""
        return _error(refusal)


class AnthropicStream:
    """Events of one message. See `Stream`."""

    def __init__(self, head: Head, prompted: Prompted) -> None:
        self._head, self._prompted = head, prompted
        self._index, self._open = 0, ""
        self._told = {"reasoning": 0, "text": 0}

    def opening(self) -> bytes:
        """message_start, with the prompt's true length."""
        prompted = self._prompted
        start = Answer("", (), "", "", prompted.tokens, prompted.cached, 0)
        return _event("message_start", message=_message(self._head, start, [])) + self.ping()

    def ping(self) -> bytes:
        """The protocol's own."""
        return _event("ping")

    def more(self, delta: Delta) -> bytes:
        """A delta of a thinking or a text block, which it opens if need be."""
        self._told[delta.kind] += len(delta.text)
        field = "thinking" if delta.kind == "reasoning" else "text"
        opened = b""
        if self._open != field:
            opened = self._close()
            self._open = field
            empty = {"thinking": "", "signature": ""} if field == "thinking" else {"text": ""}
            opened += _event("content_block_start", index=self._index, content_block={"type": field, **empty})
        return opened + self._delta({"type": f"{field}_delta", field: delta.text})

    def events(self, answer: Answer) -> bytes:
        """What is left of all blocks, the stop reason with the usage, message_stop."""
        parts: list[bytes] = []
        for delta in (Delta("reasoning", answer.reasoning), Delta("text", answer.text)):
            if left := delta.text[self._told[delta.kind] :]:
                parts.append(self.more(Delta(delta.kind, left)))
        parts.append(self._close())
        for call in answer.calls:
            block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
            parts.append(_event("content_block_start", index=self._index, content_block=block))
            parts.append(self._delta({"type": "input_json_delta", "partial_json": call.arguments}))
            self._open = "tool_use"
            parts.append(self._close())
        delta = {"stop_reason": _finish(answer), "stop_sequence": answer.stop or None}
        parts += (_event("message_delta", delta=delta, usage=_usage(answer)), _event("message_stop"))
        return b"".join(parts)

    def _delta(self, delta: Json) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)

    def _close(self) -> bytes:
        if not self._open:
            return b""
        signed = self._open == "thinking"
        signature = self._delta({"type": "signature_delta", "signature": self._head.id}) if signed else b""
        self._index, self._open = self._index + 1, ""
        return signature + _event("content_block_stop", index=self._index - 1)

    def failed(self, refusal: Refusal) -> bytes:
        """An error event."""
        return event(_error(refusal), "error")


def _system(value: Any) -> tuple[Message, ...]:
    parts = [{"type": "text", "text": value}] if isinstance(value, str) else a_list(value or [], "system")
    texts = [_text(an_object(part, "system"), "system") for part in parts]
    kept = [text for text in texts if not text.startswith(_BILLING)]
    return (Message("system", "\n".join(kept)),) if kept else ()


def _messages(wire: Json, name: str) -> Iterator[Message]:
    """The canonical messages of one: a user message holds tool results and text."""
    role, content = wire.get("role"), wire.get("content")
    if role not in ("user", "assistant", "system"):
        raise Refusal("invalid", f"{name}.role={role!r}: expected user, assistant or system", f"{name}.role")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else a_list(content, f"{name}.content")
    blocks = [an_object(block, f"{name}.content") for block in blocks]
    if role == "assistant":
        yield _assistant(blocks, name)
        return
    texts: list[str] = []
    for block in blocks:
        if block.get("type") != "tool_result":
            texts.append(_text(block, f"{name}.content"))
            continue
        if texts:
            yield Message(role, "\n".join(texts))
            texts = []
        result = _result(block.get("content"), f"{name}.content")
        yield Message("tool", result, call_id=str(block.get("tool_use_id") or ""))
    if texts or not blocks:
        yield Message(role, "\n".join(texts))


def _assistant(blocks: Sequence[Json], name: str) -> Message:
    texts: list[str] = []
    thinking: list[str] = []
    calls: list[ToolCall] = []
    for block in blocks:
        kind = block.get("type")
        if kind == "thinking":
            thinking.append(str(block.get("thinking") or ""))
        elif kind == "tool_use":
            written = arguments_of(block.get("input"))
            calls.append(ToolCall(str(block.get("id") or ""), str(block.get("name") or ""), written))
        elif kind != "redacted_thinking":
            texts.append(_text(block, f"{name}.content"))
    return Message("assistant", "\n".join(texts), tuple(calls), reasoning="\n".join(thinking))


def _result(content: Any, name: str) -> str:
    """What a tool said; a reference to a tool is said by its name."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = [an_object(part, name) for part in a_list(content, name)]
    named = ({"text": str(p.get("tool_name") or "")} if p.get("type") == "tool_reference" else p for p in parts)
    return "\n".join(_text(part, name) for part in named)


def _text(block: Json, name: str) -> str:
    text = block.get("text")
    if not isinstance(text, str):
        kind = block.get("type", "unknown")
        raise Refusal("invalid", f"{name}: a block of type {kind!r} is not text; this model reads text only", name)
    return text


def _tools(value: Any) -> tuple[Json, ...]:
    """Declarations of the client's tools; tools of Anthropic's own servers are not there to be called."""
    wires = [an_object(t, "tools") for t in a_list(value or [], "tools")]
    own = (w for w in wires if w.get("type", "custom") == "custom")
    return tuple(function(w.get("name"), w.get("description"), w.get("input_schema"), "tools") for w in own)


def _blocks(head: Head, answer: Answer) -> Iterator[Json]:
    if answer.reasoning:
        yield {"type": "thinking", "thinking": answer.reasoning, "signature": head.id}
    if answer.text:
        yield {"type": "text", "text": answer.text}
    for call in answer.calls:
        yield {"type": "tool_use", "id": call.id, "name": call.name, "input": orjson.loads(call.arguments)}


def _message(head: Head, answer: Answer, blocks: list[Json]) -> Json:
    return {
        "id": head.id,
        "type": "message",
        "role": "assistant",
        "model": head.model,
        "content": blocks,
        "stop_reason": _finish(answer),
        "stop_sequence": answer.stop or None,
        "usage": _usage(answer),
    }


def _finish(answer: Answer) -> str | None:
    return "stop_sequence" if answer.stop else _FINISH.get(answer.finish)


def _usage(answer: Answer) -> Json:
    """In this protocol the tokens read from the cache are not among the input tokens."""
    return {
        "input_tokens": answer.prompt_tokens - answer.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": answer.cached_tokens,
        "output_tokens": answer.completion_tokens,
    }


def _error(refusal: Refusal) -> Json:
    message = refusal.message
    if refusal.kind == "too_long" and refusal.tokens:
        message = f"prompt is too long: {refusal.tokens} tokens > {refusal.window} maximum"
    return {"type": "error", "error": {"type": _KINDS.get(refusal.kind, "invalid_request_error"), "message": message}}


def _event(kind: str, **values: Any) -> bytes:
    return event({"type": kind, **values}, kind)
