"""One attempt of a call at one engine, in the HTTP shape of `engine/base.py`. Ids go out as a numpy array.

Every outcome is a `Part`, never an exception: an engine that is closed, dead or confused ends an attempt, not a call.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from qwengyre.gateway.wire import Broken, Reply, post
from qwengyre.types import Floats, Ids, Stretch

Hear = Callable[[list[int]], None]


@dataclass(frozen=True)
class Part:
    """What an attempt gave. `finish`: stop, length, abort (with all tokens made so far), or without tokens: closed
    (409), lost (no usable answer), too_long, invalid, unknown_prefix; `reason` is one line. Stretches count from this
    part's start. `kept`: the engine knows the prompt and these ids by the request's id from now on."""

    finish: str
    output: Ids
    logprobs: Floats
    stretches: tuple[Stretch, ...] = ()
    reason: str = ""
    kept: bool = False


def nothing(finish: str, reason: str) -> Part:
    """A part without tokens."""
    return Part(finish, np.empty(0, np.int32), np.empty(0, np.float32), (), reason)


class Engines:
    """The client of all engines. A connection serves one call: a reused one that the engine has just closed would look
    like a dead engine."""

    async def generate(self, url: str, request: dict[str, Any], hear: Hear | None = None) -> Part:
        """POST the call and wait for its end. Cancelling this aborts the call at the engine. `hear`: is told the ids as
        they are sampled, by an engine that streams."""
        body = orjson.dumps(request | ({"stream": True} if hear else {}), option=orjson.OPT_SERIALIZE_NUMPY)
        last = b""

        def told(line: bytes) -> None:
            nonlocal last
            last = line
            if hear is not None and line.startswith(b'{"token_ids"'):
                hear(orjson.loads(line)["token_ids"])

        try:
            answer = await post(f"{url}/inference/v1/generate", body, told if hear else None)
        except Broken as error:
            return nothing("lost", str(error))
        if answer.status == 409:
            return nothing("closed", "the engine is closed")
        if answer.status == 400:
            return _rejected(answer)
        if answer.status != 200:
            return nothing("lost", f"HTTP {answer.status}: {answer.text[:200]}")
        try:
            return _part(orjson.loads(answer.content or last))
        except (ValueError, KeyError, TypeError, IndexError) as error:
            return nothing("lost", f"an answer that is not in the engine's shape: {error!r}")

    async def abort(self, url: str, request_id: str) -> None:
        """End a call with its partial output, which its own `generate` returns. A dead engine has nothing to end."""
        with contextlib.suppress(Broken):
            await post(f"{url}/abort_requests", orjson.dumps({"request_ids": [request_id]}))


def _rejected(answer: Reply) -> Part:
    try:
        error = orjson.loads(answer.content)["error"]
        kind, message = error["type"], str(error["message"])
    except (ValueError, KeyError, TypeError):
        kind, message = "invalid", answer.text[:200]
    return nothing(kind if kind in ("too_long", "unknown_prefix") else "invalid", message)


def _part(answer: dict[str, Any]) -> Part:
    choice = answer["choices"][0]
    output = np.array(choice["token_ids"], np.int32)
    content = (choice.get("logprobs") or {}).get("content") or []
    logprobs = np.array([token["logprob"] for token in content], np.float32)
    finish, engine = choice["finish_reason"], str(answer["engine"])
    if finish not in ("stop", "length", "abort"):
        raise ValueError(f"finish_reason {finish!r}")
    if len(output) != len(logprobs) or output.ndim != 1:
        raise ValueError(f"{len(output)} token ids, {len(logprobs)} log-probs")
    stamped = choice["weight_versions"]
    spans = [(int(s["start"]), int(s["end"]), int(s["version"]), int(s.get("kv_version", -1))) for s in stamped]
    spans = [s for s in spans if s[0] < s[1]]
    edges = [0, *(end for _, end, *_ in spans)]
    if [s[0] for s in spans] != edges[:-1] or edges[-1] != len(output):
        raise ValueError(f"weight_versions {spans} do not cover {len(output)} tokens")
    last = len(spans) - 1
    stretches = tuple(
        Stretch(s, e, v, engine, finish if i == last else "version", kv) for i, (s, e, v, kv) in enumerate(spans)
    )
    return Part(finish, output, logprobs, stretches, kept=bool(answer.get("kept")))
