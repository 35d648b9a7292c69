"""What the gateway needs of a wire protocol. A dialect is pure: JSON values to canonical ones and back, no I/O.

A held answer on the wire: (status and headers, at once) `opening`, then `ping` every 15 s, then `events` with the
whole answer when streaming; `filler` every 15 s and then `body` when not.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from qwengyre.gateway.canon import Answer, Head, Message, Refusal, Request
from qwengyre.gateway.parse import Delta

Json = dict[str, Any]


@dataclass(frozen=True)
class Known:
    """What stands before the items that are decoded: the `messages` of the first `items`."""

    messages: tuple[Message, ...] = ()
    items: int = 0


@dataclass(frozen=True)
class Prompted:
    """How long the prompt of an answer is, and how much of it was there before."""

    tokens: int
    cached: int


class Stream(Protocol):
    """One streamed answer."""

    def opening(self) -> bytes:
        """The first bytes, sent with the headers; may be empty."""
        ...

    def ping(self) -> bytes:
        """A protocol-level event that changes nothing (never an SSE comment alone)."""
        ...

    def more(self, delta: Delta) -> bytes:
        """More of the reasoning or the text, of an answer that is streamed as it is sampled. Reasoning comes first."""
        ...

    def events(self, answer: Answer) -> bytes:
        """The rest of the stream, terminal event included."""
        ...

    def failed(self, refusal: Refusal) -> bytes:
        """The last event of a stream whose call failed after the headers."""
        ...


class Dialect(Protocol):
    """One wire protocol. `path` is where it listens, below `/x/<token>` or at the top; `count_path` answers with the
    length of a prompt ("": the protocol has no such thing). `array` is the key of the list that grows with the talk."""

    path: str
    count_path: str
    array: str

    def decode(self, wire: Json, known: Known) -> Request:
        """The request of a body, whose list lacks the `known` items. Raises Refusal("invalid") naming the field."""
        ...

    def head(self, model: str) -> Head:
        """A new answer's head, with an id in this protocol's form."""
        ...

    def stream(self, request: Request, head: Head, prompted: Prompted) -> Stream:
        """A new streamed answer."""
        ...

    def body(self, request: Request, head: Head, answer: Answer) -> bytes:
        """The answer to a request that does not stream."""
        ...

    def counted(self, tokens: int) -> Json:
        """The answer of `count_path`."""
        ...

    def error(self, refusal: Refusal) -> Json:
        """The JSON body of an error."""
        ...


def key_of(headers: Mapping[str, str]) -> str:
    """The API key that a client sent, in whatever way; "" if none."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "").strip()
