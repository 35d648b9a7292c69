"""OpenAI completions: `POST /v1/completions`. The client writes the prompt itself, control tokens included."""

import secrets
import time
from typing import Any, cast

from qwengyre.gateway.canon import Answer, Head, Refusal, Request
from qwengyre.gateway.dialects.base import Json, Known, Prompted
from qwengyre.gateway.dialects.chat import usage_of
from qwengyre.gateway.dialects.wire import a_count, dumps, event, left_over, openai_error, stops_of
from qwengyre.gateway.parse import Delta

_FOLLOWED = frozenset(("prompt", "model", "stream", "stream_options", "max_tokens", "stop", "n", "best_of", "echo"))
_DEFAULT_TOKENS = 16  # the protocol's own
_LARGEST_ID = 2**31 - 1


class Completions:
    """Text in, text out."""

    path, count_path, array = "/v1/completions", "", ""

    def decode(self, wire: Json, known: Known) -> Request:
        """See the protocol."""
        for name, only in (("n", 1), ("best_of", 1), ("echo", False)):
            if wire.get(name) not in (None, only):
                raise Refusal("invalid", f"{name}={wire[name]!r}: this server knows {name}={only} only", name)
        if wire.get("suffix"):
            raise Refusal("invalid", "suffix is not served: this model writes forward", "suffix")
        return Request(
            messages=(),
            raw=_prompt(wire.get("prompt")),
            max_tokens=a_count(wire.get("max_tokens"), "max_tokens") or _DEFAULT_TOKENS,
            stream=bool(wire.get("stream")),
            include_usage=bool((wire.get("stream_options") or {}).get("include_usage")),
            parse_tools=False,
            stops=stops_of(wire.get("stop"), "stop"),
            model=str(wire.get("model") or ""),
            ignored=left_over(wire, _FOLLOWED),
        )

    def head(self, model: str) -> Head:
        """See the protocol."""
        return Head(f"cmpl-{secrets.token_hex(12)}", int(time.time()), model)

    def stream(self, request: Request, head: Head, prompted: Prompted) -> "CompletionStream":
        """See the protocol."""
        return CompletionStream(request, head)

    def body(self, request: Request, head: Head, answer: Answer) -> bytes:
        """A text_completion object."""
        return dumps({**_completion(head, answer.text, answer.finish), "usage": usage_of(answer)})

    def counted(self, tokens: int) -> Json:
        """Not a part of this protocol."""
        return {"input_tokens": tokens}

    def error(self, refusal: Refusal) -> Json:
        """OpenAI's error object."""
        return openai_error(refusal)


class CompletionStream:
    """Chunks. See `Stream`."""

    def __init__(self, request: Request, head: Head) -> None:
        self._request, self._head = request, head
        self._told = 0

    def opening(self) -> bytes:
        """Nothing."""
        return b""

    def ping(self) -> bytes:
        """A chunk without text."""
        return event(_completion(self._head, "", None))

    def more(self, delta: Delta) -> bytes:
        """A chunk."""
        self._told += len(delta.text)
        return event(_completion(self._head, delta.text, None))

    def events(self, answer: Answer) -> bytes:
        """The text, the finish reason, usage where asked, [DONE]."""
        parts = [
            event(_completion(self._head, answer.text[self._told :], None)),
            event(_completion(self._head, "", answer.finish)),
        ]
        if self._request.include_usage:
            parts.append(event({**_completion(self._head, "", None), "choices": [], "usage": usage_of(answer)}))
        return b"".join(parts) + b"data: [DONE]\n\n"

    def failed(self, refusal: Refusal) -> bytes:
        """An error event."""
        return event(openai_error(refusal))


def _prompt(value: Any) -> str | tuple[int, ...]:
    if isinstance(value, list) and len(cast("list[Any]", value)) == 1 and not isinstance(value[0], int):
        return _prompt(value[0])
    if isinstance(value, str) and value:
        return value
    ids = cast("list[Any]", value) if isinstance(value, list) else []
    if ids and all(type(i) is int and 0 <= i <= _LARGEST_ID for i in ids):
        return tuple(ids)
    raise Refusal("invalid", "prompt must be one text or one list of token ids, not empty", "prompt")


def _completion(head: Head, text: str, finish: str | None) -> Json:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
    return {
        "id": head.id,
        "object": "text_completion",
        "created": head.created,
        "model": head.model,
        "choices": [choice],
    }
