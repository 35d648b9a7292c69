"""OpenAI responses: `POST /v1/responses`. Items in, items out; nothing is stored, the client sends the whole talk."""

import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

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
)
from qwengyre.gateway.parse import Delta

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_FOLLOWED = frozenset(("input", "instructions", "tools", "model", "stream", "max_output_tokens"))
_TEXT: dict[str, tuple[str, Json]] = {
    "reasoning": ("reasoning_summary_text", {}),
    "message": ("output_text", {"logprobs": []}),
}
"""Type of an item that holds text -> how its events are called, and what they have besides."""
_HOSTED = "hosted tools, which run at OpenAI only"


class Responses:
    """The dialect of Codex. Tools in a namespace are shown to the model as `namespace.name`."""

    path, count_path, array = "/v1/responses", "/v1/responses/input_tokens", "input"

    def decode(self, wire: Json, known: Known) -> Request:
        """See the protocol."""
        if wire.get("previous_response_id"):
            raise Refusal(
                "invalid",
                "previous_response_id: nothing is stored here; send the whole conversation as input",
                "previous_response_id",
            )
        talk, cuts = _talk(wire.get("input"), known)
        tools = _tools(wire.get("tools"))
        choice = wire.get("tool_choice")
        shape = an_object(an_object(wire.get("text") or {}, "text").get("format") or {}, "text.format")
        head = (Message("system", str(wire["instructions"])),) if wire.get("instructions") else ()
        return Request(
            messages=(*head, *talk),
            tools=tuple(tools.declared),
            max_tokens=a_count(wire.get("max_output_tokens"), "max_output_tokens"),
            stream=bool(wire.get("stream")),
            include_usage=True,
            constrained=choice not in (None, "auto", "none") or shape.get("type", "text") != "text",
            parse_tools=choice != "none",
            model=str(wire.get("model") or ""),
            ignored=left_over(wire, _FOLLOWED) | ({_HOSTED: tools.hosted} if tools.hosted else {}),
            wire={"custom": tools.custom, "namespaces": tools.namespaces, "head": len(head)},
            cuts=cuts,
        )

    def head(self, model: str) -> Head:
        """See the protocol."""
        return Head(f"resp_{secrets.token_hex(12)}", int(time.time()), model)

    def stream(self, request: Request, head: Head, prompted: Prompted) -> "ResponseStream":
        """See the protocol."""
        return ResponseStream(request, head)

    def body(self, request: Request, head: Head, answer: Answer) -> bytes:
        """A response object."""
        return dumps(_finished(request, head, answer))

    def counted(self, tokens: int) -> Json:
        """The length of a prompt."""
        return {"object": "response.input_tokens", "input_tokens": tokens}

    def error(self, refusal: Refusal) -> Json:
        """OpenAI's error object."""
        return openai_error(refusal)


class ResponseStream:
    """Numbered events. See `Stream`."""

    def __init__(self, request: Request, head: Head) -> None:
        self._request, self._head = request, head
        self._number = self._index = 0
        self._kind, self._said = "", ""
        """The item that grows, and its text."""

    def opening(self) -> bytes:
        """response.created and response.in_progress."""
        return self._event("response.created", response=self._open()) + self.ping()

    def ping(self) -> bytes:
        """response.in_progress: comments do not keep every client waiting, events do."""
        return self._event("response.in_progress", response=self._open())

    def more(self, delta: Delta) -> bytes:
        """A delta of the reasoning or the message item, which it opens if need be."""
        kind = "reasoning" if delta.kind == "reasoning" else "message"
        opened = b""
        if self._kind != kind:
            opened = self._close("completed")
            self._kind = kind
            item, part, at = self._texts("in_progress")
            name = "reasoning_summary_part" if kind == "reasoning" else "content_part"
            bare = item | ({"summary": []} if kind == "reasoning" else {"content": []})
            opened += self._event("response.output_item.added", output_index=self._index, item=bare)
            opened += self._event(f"response.{name}.added", **at, part=part)
        _, _, at = self._texts("in_progress")
        self._said += delta.text
        name, extra = _TEXT[kind]
        return opened + self._event(f"response.{name}.delta", **at, delta=delta.text, **extra)

    def events(self, answer: Answer) -> bytes:
        """What is left of every item, and the end."""
        parts: list[bytes] = []
        for index, item in enumerate(_items(self._request, self._head, answer)):
            if index < self._index:
                continue  # told whole
            if item["type"] in _TEXT:
                kind = "reasoning" if item["type"] == "reasoning" else "text"
                text = answer.reasoning if kind == "reasoning" else answer.text
                said = self._said if self._kind == item["type"] else None
                if said is None or text != said:
                    parts.append(self.more(Delta(kind, text[len(said or "") :])))
                parts.append(self._close(item.get("status", "completed")))
            else:
                parts += self._call(item)
        kind = "response.incomplete" if answer.finish == "length" else "response.completed"
        return b"".join(parts) + self._event(kind, response=_finished(self._request, self._head, answer))

    def failed(self, refusal: Refusal) -> bytes:
        """response.failed."""
        error = openai_error(refusal)["error"]
        failed = {"code": error["code"] or "server_error", "message": error["message"]}
        return self._event("response.failed", response=self._open() | {"status": "failed", "error": failed})

    def _texts(self, status: str) -> tuple[Json, Json, Json]:
        """The item that grows, its only part, and where that is."""
        if self._kind == "reasoning":
            item = _reasoning(self._head, self._said)
            part, where = item["summary"][0], {"summary_index": 0}
        else:
            item = _said(self._head, self._said, status)
            part, where = item["content"][0], {"content_index": 0}
        return item, part, {"output_index": self._index, "item_id": item["id"], **where}

    def _close(self, status: str) -> bytes:
        if not self._kind:
            return b""
        item, part, at = self._texts(status)
        name, extra = _TEXT[self._kind]
        part_name = "reasoning_summary_part" if self._kind == "reasoning" else "content_part"
        done = self._event(f"response.{name}.done", **at, text=self._said, **extra)
        done += self._event(f"response.{part_name}.done", **at, part=part)
        done += self._event("response.output_item.done", output_index=self._index, item=item)
        self._kind, self._said, self._index = "", "", self._index + 1
        return done

    def _call(self, item: Json) -> Iterator[bytes]:
        where = {"output_index": self._index, "item_id": item["id"]}
        field = "arguments" if item["type"] == "function_call" else "input"
        name = "function_call_arguments" if field == "arguments" else "custom_tool_call_input"
        named = {"name": item["name"]} if field == "arguments" else {}
        bare = item | {"status": "in_progress", field: ""}
        yield self._event("response.output_item.added", output_index=self._index, item=bare)
        yield self._event(f"response.{name}.delta", **where, delta=item[field])
        yield self._event(f"response.{name}.done", **where, **named, **{field: item[field]})
        yield self._event("response.output_item.done", output_index=self._index, item=item)
        self._index += 1

    def _open(self) -> Json:
        return _response(self._request, self._head, "in_progress", [])

    def _event(self, kind: str, **values: Any) -> bytes:
        self._number += 1
        return event({"type": kind, "sequence_number": self._number - 1, **values}, kind)


# Requests


@dataclass
class _Tools:
    declared: list[Json] = field(default_factory=list[Json])
    custom: list[str] = field(default_factory=list[str])
    namespaces: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    """Name shown to the model -> (namespace, name)."""
    hosted: list[str] = field(default_factory=list[str])


def _tools(value: Any) -> _Tools:
    tools = _Tools()
    for wire in a_list(value or [], "tools"):
        _add_tool(tools, an_object(wire, "tools"), "")
    return tools


def _add_tool(tools: _Tools, wire: Json, namespace: str) -> None:
    kind, name = wire.get("type"), wire.get("name")
    if kind == "namespace" and not namespace:
        for inner in a_list(wire.get("tools") or [], "tools.tools"):
            _add_tool(tools, an_object(inner, "tools.tools"), str(name))
        return
    if kind not in ("function", "custom"):
        tools.hosted.append(str(kind))
        return
    shown = f"{namespace}.{name}" if namespace else name
    if kind == "custom":
        tools.declared.append(freeform(shown, wire.get("description"), "tools"))
        tools.custom.append(str(shown))
    else:
        tools.declared.append(function(shown, wire.get("description"), wire.get("parameters"), "tools"))
    if namespace:
        tools.namespaces[str(shown)] = (namespace, str(name))


def _talk(value: Any, known: Known) -> tuple[list[Message], tuple[int, ...]]:
    items = [{"role": "user", "content": value}] if isinstance(value, str) else a_list(value, "input")
    if not items and not known.items:
        raise Refusal("invalid", "input is empty: give at least one item", "input")
    talk, cuts = list(known.messages), list[int]()
    growing = False
    for at, item in enumerate(items, known.items):
        message = _message(an_object(item, f"input[{at}]"), f"input[{at}]")
        if growing and _continues(talk[-1], message):
            talk[-1] = _merged(talk[-1], message)
        else:
            talk.append(message)
        growing = message.role == "assistant"
        cuts.append(-1 if growing else len(talk))
    return talk, tuple(cuts)


def _continues(turn: Message, message: Message) -> bool:
    """Whether an item belongs to the assistant's turn before it: reasoning, then text, then calls."""
    if message.role != "assistant":
        return False
    if message.calls:
        return True
    return not turn.calls and not turn.text and bool(message.text or message.reasoning)


def _merged(turn: Message, message: Message) -> Message:
    reasoning = "\n".join(r for r in (turn.reasoning, message.reasoning) if r)
    return replace(turn, text=turn.text or message.text, calls=turn.calls + message.calls, reasoning=reasoning)


def _message(wire: Json, name: str) -> Message:
    kind = wire.get("type", "message")
    if kind == "message":
        role = _ROLES.get(str(wire.get("role")))
        if role is None:
            raise Refusal("invalid", f"role={wire.get('role')!r}; known: {', '.join(_ROLES)}", f"{name}.role")
        return Message(role, joined(wire.get("content"), f"{name}.content"))
    if kind == "reasoning":
        said = wire.get("content") or wire.get("summary") or []
        return Message("assistant", reasoning=joined(said, f"{name}.summary"))
    if kind in ("function_call", "custom_tool_call"):
        return Message("assistant", calls=(_echoed(wire, kind),))
    if kind in ("function_call_output", "custom_tool_call_output"):
        return Message("tool", joined(wire.get("output"), f"{name}.output"), call_id=str(wire.get("call_id") or ""))
    raise Refusal("invalid", f"an item of type {kind!r} is not served here", f"{name}.type")


def _echoed(wire: Json, kind: str) -> ToolCall:
    shown = str(wire.get("name") or "")
    if wire.get("namespace"):
        shown = f"{wire['namespace']}.{shown}"
    custom = kind == "custom_tool_call"
    written = freeform_arguments(wire.get("input")) if custom else arguments_of(wire.get("arguments") or "")
    return ToolCall(str(wire.get("call_id") or ""), shown, written)


# Answers


def _items(request: Request, head: Head, answer: Answer) -> Iterator[Json]:
    own, status = head.id.removeprefix("resp_"), "incomplete" if answer.finish == "length" else "completed"
    if answer.reasoning:
        yield _reasoning(head, answer.reasoning)
    if answer.text or not answer.calls:
        yield _said(head, answer.text, status)
    for at, call in enumerate(answer.calls):
        yield {"id": f"fc_{own}_{at}", "call_id": call.id, "status": status, **_called(request, call)}


def _reasoning(head: Head, text: str) -> Json:
    summary = [{"type": "summary_text", "text": text}]
    own = head.id.removeprefix("resp_")
    return {"id": f"rs_{own}", "type": "reasoning", "summary": summary, "encrypted_content": head.id}


def _said(head: Head, text: str, status: str) -> Json:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    own = head.id.removeprefix("resp_")
    return {"id": f"msg_{own}", "type": "message", "role": "assistant", "status": status, "content": [part]}


def _called(request: Request, call: ToolCall) -> Json:
    namespace, name = request.wire["namespaces"].get(call.name, ("", call.name))
    inside = {"namespace": namespace} if namespace else {}
    if call.name in request.wire["custom"]:
        return {"type": "custom_tool_call", "name": name, "input": freeform_input(call), **inside}
    return {"type": "function_call", "name": name, "arguments": call.arguments, **inside}


def _finished(request: Request, head: Head, answer: Answer) -> Json:
    cut = answer.finish == "length"
    usage = {
        "input_tokens": answer.prompt_tokens,
        "input_tokens_details": {"cached_tokens": answer.cached_tokens},
        "output_tokens": answer.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
    }
    items = list(_items(request, head, answer))
    made = _response(request, head, "incomplete" if cut else "completed", items) | {"usage": usage}
    return made | ({"incomplete_details": {"reason": "max_output_tokens"}} if cut else {})


def _response(request: Request, head: Head, status: str, output: list[Json]) -> Json:
    asked = request.ignored
    return {
        "id": head.id,
        "object": "response",
        "created_at": head.created,
        "status": status,
        "model": head.model,
        "output": output,
        "parallel_tool_calls": bool(asked.get("parallel_tool_calls", True)),
        "tool_choice": asked.get("tool_choice", "auto"),
        "tools": [],
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": asked.get("metadata") or {},
        "temperature": asked.get("temperature"),
        "top_p": asked.get("top_p"),
        "usage": None,
    }
