"""What the gateway needs of a wire protocol. A dialect is pure: bytes to canonical values and back, no I/O.

A held answer on the wire: (status and headers, at once) `opening`, then `ping` every 15 s, then `events` with the
whole answer when streaming; `filler` every 15 s and then `body` when not.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from qwengyre.gateway.canon import Answer, Head, Refusal, Request


class Dialect(Protocol):
    """One wire protocol. `path` is where it listens, below `/x/<token>` or at the top."""

    path: str

    def key(self, headers: Mapping[str, str]) -> str:
        """The API key that the client sent, "" if none."""
        ...

    def decode(self, body: bytes) -> Request:
        """Raises Refusal("invalid") naming the field and what was expected."""
        ...

    def head(self, model: str) -> Head:
        """A new answer's head, with an id in this protocol's form."""
        ...

    def opening(self, head: Head) -> bytes:
        """A stream's first bytes, sent with the headers; may be empty."""
        ...

    def ping(self, head: Head) -> bytes:
        """A protocol-level event that changes nothing (never an SSE comment alone)."""
        ...

    def events(self, request: Request, head: Head, answer: Answer) -> bytes:
        """The rest of the stream, terminal event included."""
        ...

    def body(self, request: Request, head: Head, answer: Answer) -> bytes:
        """The answer to a request that does not stream."""
        ...

    def failed(self, refusal: Refusal) -> bytes:
        """The last event of a stream whose call failed after the headers."""
        ...

    def error(self, refusal: Refusal) -> dict[str, Any]:
        """The JSON body of an error."""
        ...
