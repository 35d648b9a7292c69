"""A call on its way through the engine: its tokens, its place in the keys and values, its spans."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from torch import Tensor

from qwengyre.engine.calls import Call, Completion, Span
from qwengyre.engine.kv import Slab, prefix_key
from qwengyre.types import Ids


class Source(NamedTuple):
    """Keys and values of `length` computed tokens to copy from, made under `version` or later."""

    length: int = 0
    data: Tensor | None = None
    version: int = 0


@dataclass(eq=False)
class Running:
    """A call on its way. `ids[:size]` = prompt and output; `known` = size when it was last admitted."""

    call: Call
    answer: Callable[[Completion], None]
    stops: frozenset[int]
    rng: random.Random
    ids: Ids
    size: int
    known: int = 0
    computed: int = 0
    slab: Slab | None = None
    row: int = 0
    strip: Tensor | None = None
    logprobs: list[float] = field(default_factory=list[float])
    kv_version: int = 0
    """The oldest weight set that made any of its keys and values."""
    versions: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    """(version, KV version, first output token sampled under them), where one of them changed."""
    key: bytes = b""

    def __post_init__(self) -> None:
        self.key = prefix_key(self.ids[: self.size])

    @property
    def spans(self) -> tuple[Span, ...]:
        """Runs of equal versions, of weights and of keys and values, over the output."""
        edges = pairwise([*self.versions, (0, 0, self.output)])
        return tuple(Span(v, start, end, -1 if kv == v else kv) for (v, kv, start), (*_, end) in edges)

    @property
    def output(self) -> int:
        """Tokens sampled so far."""
        return self.size - len(self.call.token_ids)

    @property
    def reserved(self) -> int:
        """KV tokens held."""
        return self.slab.tokens if self.slab else self.strip.shape[2] if self.strip is not None else 0

    @property
    def remaining(self) -> int:
        """Known tokens that are not computed."""
        return self.size - self.computed

    def view(self, tokens: int) -> Tensor:
        """Keys and values of the first `tokens` computed tokens."""
        assert tokens <= self.computed
        if self.slab:
            return self.slab.view(self.row, tokens)
        assert self.strip is not None
        return self.strip[:, :, :tokens]
