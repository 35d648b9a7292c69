"""A logical call: it outlives its engine and its client. The values; `session.py` moves them.

queued -> running -> (interrupted with partial -> queued)* -> done -> journaled -> answered (delivered, or kept)
"""

import asyncio
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qwengyre.gateway.canon import Answer, Head, Message, Refusal, Request, ToolCall
from qwengyre.gateway.forward import Part
from qwengyre.gateway.match import Prompt
from qwengyre.gateway.parse import Parsed
from qwengyre.types import Floats, Ids, ModelCall, Stretch


@dataclass(frozen=True)
class Sealed:
    """What a sealed execution amounts to. Tokens in: the sum of all calls' conditioning lengths."""

    calls: int
    delivered: int
    tokens_in: int
    tokens_out: int


class Call:
    """One call in flight, or kept for a client that went away. Only its session changes it."""

    def __init__(self, number: int, key: str, request: Request, head: Head, prompt: Prompt) -> None:
        self.number, self.key, self.request, self.head, self.prompt = number, key, request, head, prompt
        self.thread = ""
        self.budget = 0
        self.state, self.since, self.cell = "queued", time.time(), -1
        self.parts: list[Part] = []
        self.tokens = 0
        """Output tokens so far."""
        self.finish = ""
        self.attached = True
        """Whether a client waits for the answer."""
        self.wanted = asyncio.Event()
        self.wanted.set()
        self.aborting = False
        """Whether we asked the engine to end the attempt that runs."""
        self.attempt: tuple[str, str] | None = None
        """Engine URL and request id of the attempt that runs."""
        self.said: list[int] = []
        """Output ids so far, those of a running attempt included where its engine streams."""
        self.news = asyncio.Event()
        self.kept: tuple[str, str] | None = None
        """Engine URL and request id under which the last attempt's prompt and output are kept there."""
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.answer.add_done_callback(lambda f: f.cancelled() or f.exception())  # a client may not be there to see it
        self.timings: dict[str, float] = {"received": self.since, "queued_s": 0.0, "running_s": 0.0}

    def enter(self, state: str, cell: int = -1) -> None:
        """Change the state; the seconds spent queued and running go to the timings."""
        now = time.time()
        spent = f"{self.state}_s"
        if spent in self.timings:
            self.timings[spent] += now - self.since
        self.state, self.since, self.cell = state, now, cell

    def hear(self, ids: list[int]) -> None:
        """More of a running attempt."""
        self.said += ids
        self.news.set()

    def take(self, part: Part) -> None:
        """Keep an attempt's tokens and decide whether the call is over."""
        if len(part.output):
            self.parts.append(part)
            self.tokens += len(part.output)
            self.said = self.output.tolist()
            self.news.set()
        if part.finish in ("stop", "length"):
            self.finish = part.finish
        elif self.tokens and (self.tokens >= self.budget or part.finish == "too_long"):
            self.finish = "length"

    def cut(self, tokens: int) -> None:
        """The answer ends after its first `tokens`, by a text at which the client wants it to stop."""
        if tokens < self.tokens:
            self.kept = None
        parts: list[Part] = []
        for part in self.parts:
            size = min(len(part.output), tokens - sum(len(p.output) for p in parts))
            stretches = tuple(replace(s, end=min(s.end, size)) for s in part.stretches if s.start < size)
            parts.append(Part("stop", part.output[:size], part.logprobs[:size], stretches))
        self.parts, self.tokens, self.finish = parts, min(tokens, self.tokens), "stop"

    @property
    def output(self) -> Ids:
        """All ids sampled so far."""
        return np.concatenate([np.empty(0, np.int32), *(p.output for p in self.parts)])

    @property
    def logprobs(self) -> Floats:
        """Their log-probs."""
        return np.concatenate([np.empty(0, np.float32), *(p.logprobs for p in self.parts)])

    @property
    def stretches(self) -> tuple[Stretch, ...]:
        """Their stretches, counted from the call's first token."""
        stretches: list[Stretch] = []
        start = 0
        for part in self.parts:
            stretches += (replace(s, start=s.start + start, end=s.end + start) for s in part.stretches)
            start += len(part.output)
        return tuple(stretches)

    def fail(self, refusal: Refusal) -> None:
        """End without an answer."""
        if not self.answer.done():
            self.answer.set_exception(refusal)


def model_call(
    call: Call, prompt: Prompt, parsed: Parsed, calls: tuple[ToolCall, ...], chain: bytes, t: float
) -> ModelCall:
    """The journal's record of a finished call. `t` is the temperature, `chain` that of the answer's echo."""
    request = call.request
    fresh = request.messages[len(request.messages) - prompt.fresh :]
    asked: dict[str, Any] = {
        "key": call.key,
        "id": call.head.id,
        "created": call.head.created,
        "model": request.model,
        "stream": request.stream,
        "max_tokens": request.max_tokens,
        "messages": [plain(m) for m in fresh],
        "chains": [*prompt.chains, chain],
        "ignored": dict(request.ignored),
    }
    if request.signals:
        asked["signals"] = dict(request.signals)
    if request.raw is not None:
        asked["raw"] = prompt.text
    if prompt.parent < 0:
        asked["tools"] = [dict(t) for t in request.tools]
    answered = {
        "raw": parsed.raw,
        "text": parsed.text,
        "reasoning": parsed.reasoning,
        "calls": [vars(c) for c in calls],
    }
    if parsed.stop:
        answered["stop"] = parsed.stop
    return ModelCall(
        call=call.number,
        thread=call.thread,
        parent=prompt.parent,
        suffix=prompt.suffix,
        segments=prompt.segments,
        output=call.output,
        logprobs=call.logprobs,
        stretches=call.stretches,
        finish=call.finish,
        temperature=t,
        trainable=not request.constrained,
        match=prompt.match,
        request=asked,
        response=answered,
        timings=dict(call.timings),
    )


def plain(message: Message) -> dict[str, Any]:
    """A message as a dict without its empty fields."""
    fields = {k: v for k, v in vars(message).items() if v}
    return fields | ({"calls": [vars(c) for c in message.calls]} if message.calls else {})


def answer_of(record: ModelCall, prompt_tokens: int) -> Answer:
    """What a client gets for a finished call; the same for a stream, a body and a later retry."""
    calls = tuple(ToolCall(**c) for c in record.response["calls"])
    finish = "tool_calls" if calls and record.finish == "stop" else record.finish
    cached = prompt_tokens - len(record.suffix)
    text, reasoning = record.response["text"], record.response["reasoning"]
    stop = record.response.get("stop", "")
    return Answer(text, calls, reasoning, finish, prompt_tokens, cached, len(record.output), stop)
