"""One trained token, back to the HTTP request that it was sampled for: `qwengyre inspect DIR EXECUTION --token N`."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from qwengyre.errors import ConfigError
from qwengyre.observe.branching import Selection
from qwengyre.trajectory.credit import advantages
from qwengyre.trajectory.select import trajectory
from qwengyre.trajectory.tree import ROOT
from qwengyre.types import ExecutionId, ModelCall, Settlement, Verdict


def group_of(scores: Sequence[Mapping[str, Any]], group: int) -> dict[int, Settlement]:
    """Member -> settlement, of the lines of `scores.jsonl` that are of `group`."""
    found: dict[int, Settlement] = {}
    for line in scores:
        execution = ExecutionId.parse(line["execution"])
        if execution.group == group:
            found[execution.member] = Settlement(Verdict(line["verdict"]), line["score"], line.get("reason", ""))
    return found


def worth(members: Mapping[int, Settlement], rl: Mapping[str, Any]) -> dict[int, float]:
    """Member -> advantage, as the run's [rl] says; none while the group has members that have not settled."""
    if len(members) < rl.get("group_size", len(members)):
        return {}
    return advantages(members, std=rl.get("advantage_std", False))


def trace(found: Selection, token: int, scores: Sequence[Mapping[str, Any]], rl: Mapping[str, Any]) -> Iterator[str]:
    """What is known of the `token`-th token that the execution trains (from 0, in the order of its trajectories). `rl`:
    that section of the run's configuration.

    Raises ConfigError when it trains fewer.
    """
    whole = sum(pick.tokens for pick in found.picks)
    if not 0 <= token < whole:
        raise ConfigError(f"--token {token}: execution {found.execution} trains {whole} tokens, 0 to {whole - 1}")
    number, left = 0, token
    while left >= found.picks[number].tokens:
        left -= found.picks[number].tokens
        number += 1
    pick = found.picks[number]
    path = trajectory(found.tree, pick, found.execution)
    at = int(np.flatnonzero(path.selected)[left])
    row = int(path.rows[at])
    offset = at - (found.tree.lengths[row] - len(found.tree.ids(row)))
    place = f"position {at} of trajectory {number} (leaf {pick.leaf}, {pick.role})"
    yield f"trained token {token} of {whole}: id {path.ids[at]}, {place}"
    yield _worth(found, whole, scores, rl)
    call = next(call for call in found.log.calls if call.call == found.tree.calls[row])
    yield from _sampled(call, offset, float(path.logprobs[at]))
    yield from _request(found, call)


def _worth(found: Selection, whole: int, scores: Sequence[Mapping[str, Any]], rl: Mapping[str, Any]) -> str:
    members = group_of(scores, found.execution.group)
    advantage = worth(members, rl).get(found.execution.member)
    if advantage is None:
        return "weight: none, it was dropped or its group has not settled"
    said = ", ".join(
        f"{m}: {s.score:.3f}" if s.verdict is not Verdict.DROPPED else f"{m}: dropped"
        for m, s in sorted(members.items())
    )
    return f"weight {advantage / whole:.3e} = advantage {advantage:+.4f} / {whole} tokens; scores of its group: {said}"


def _sampled(call: ModelCall, offset: int, logprob: float) -> Iterator[str]:
    stretch = next(s for s in call.stretches if s.start <= offset < s.end)
    keys = f", on keys and values of v{stretch.kv_version}" if 0 <= stretch.kv_version != stretch.version else ""
    yield (
        f"sampled as token {offset} of {len(call.output)} of call {call.call}, log-prob {logprob:.4f} at temperature "
        f"{call.temperature:g}, by {stretch.engine} under weights v{stretch.version}{keys}"
    )


def _request(found: Selection, call: ModelCall) -> Iterator[str]:
    asked = call.request
    length = len(call.suffix) + (found.tree.lengths[call.parent] if call.parent != ROOT else 0)
    received = call.timings.get("received")
    at = datetime.fromtimestamp(received, UTC).isoformat(timespec="milliseconds") if received else "an unknown time"
    delivered = "delivered" if call.call in found.log.delivered else "never delivered"
    yield (
        f"HTTP request {asked.get('id', '?')} received at {at}, thread {call.thread}: {length} tokens of prompt, "
        f"{len(call.suffix)} of them new ({call.match}); answer {call.finish}, {delivered}"
    )
    for place, value in (asked.get("signals") or {}).items():
        yield f"    {place}: {value}"
    for key in ("model", "max_tokens", "stream", "ignored"):
        if asked.get(key):
            yield f"    {key}: {json.dumps(asked[key], default=repr)}"
    for message in asked.get("messages", ()):
        yield f"    {message.get('role', '?')}: {_plain(message.get('text', ''))}"
    yield f"    -> assistant: {_plain(call.response.get('raw', ''))}"


def _plain(text: object) -> str:
    """Whole, on one line, without escape sequences of a terminal."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in str(text))
