"""Sequences that an engine has seen, by the request that it saw them in: a gateway then sends only what is new."""

import zlib
from collections import OrderedDict
from typing import Any

import numpy as np

from qwengyre.engine.calls import Call, Completion, RefusedCallError
from qwengyre.types import Ids

_MOST_TOKENS = 8_000_000
"""32 MB of ids."""


class Prefixes:
    """Prompt and output of the last requests, at most `most` tokens in all; the least recently used go first."""

    def __init__(self, most: int = _MOST_TOKENS) -> None:
        self._most, self._tokens = most, 0
        self._kept: OrderedDict[str, Ids] = OrderedDict()

    def find(self, wanted: Any) -> Ids:
        """The ids that `prefix` of a request names. Raises RefusedCallError: unknown_prefix, invalid."""
        try:
            name, length, crc = str(wanted["request_id"]), int(wanted["length"]), int(wanted["crc"])
        except (KeyError, TypeError, ValueError):
            raise RefusedCallError("invalid", "prefix must have request_id, length and crc") from None
        ids = self._kept.get(name)
        if ids is None or not 0 < length <= len(ids) or zlib.crc32(ids[:length].data) != crc:
            raise RefusedCallError("unknown_prefix", f"the first {length} ids of request {name} are not kept: send all")
        self._kept.move_to_end(name)
        return ids[:length]

    def keep(self, call: Call, completion: Completion, prefix: str) -> bool:
        """Keep a finished call's sequence; what it went on from, named `prefix`, goes if it is wholly part of it."""
        ids = np.concatenate([call.token_ids, completion.token_ids]).astype("<i4", copy=False)
        if len(ids) > self._most:
            return False
        before = self._kept.get(prefix)
        if before is not None and len(before) <= len(call.token_ids):
            self._drop(prefix)
        self._kept[call.request_id] = ids
        self._tokens += len(ids)
        while self._tokens > self._most:
            self._drop(next(iter(self._kept)))
        return True

    def _drop(self, name: str) -> None:
        self._tokens -= len(self._kept.pop(name))
