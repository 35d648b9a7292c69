"""Recorded calls as a journal holds them, written by hand: what roles are told from."""

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qwengyre.trajectory.roles import KNOWN, LeafRole, Table, roles
from qwengyre.trajectory.tree import ROOT, Tree
from qwengyre.types import Kind, ModelCall, Segment, Stretch

TOOLS = [{"function": {"name": "bash"}}]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "text": text}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "text": text}


def assistant(text: str = "", *ids: str) -> dict[str, Any]:
    return {"role": "assistant", "text": text, "calls": [{"id": i} for i in ids]}


def result(call_id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "text": text, "call_id": call_id}


def tool(call_id: str, **arguments: Any) -> dict[str, Any]:
    return {"id": call_id, "name": "f", "arguments": json.dumps(arguments)}


@dataclass
class Record:
    """Grows a tree and its calls; `call` returns the sampled row."""

    tree: Tree = field(default_factory=Tree)
    calls: list[ModelCall] = field(default_factory=list[ModelCall])

    def call(
        self,
        parent: int,
        *said: dict[str, Any],
        text: str = "",
        makes: tuple[dict[str, Any], ...] = (),
        tools: list[Any] | None = None,
        thread: str = "t",
        signals: dict[str, str] | None = None,
        output: int = 4,
    ) -> int:
        """One message is one context row of 3 tokens."""
        request: dict[str, Any] = {"messages": list(said), "signals": signals or {}}
        if parent == ROOT:
            request["tools"] = TOOLS if tools is None else tools
        number = len(self.calls)
        call = ModelCall(
            call=number,
            thread=thread,
            parent=parent,
            suffix=np.zeros(3 * len(said), np.int32),
            segments=tuple(Segment(Kind.CONTEXT, 3) for _ in said),
            output=np.full(output, number, np.int32),
            logprobs=np.full(output, -1, np.float32),
            stretches=(Stretch(0, output, 0, "cell0.1", "stop"),),
            finish="stop",
            temperature=1.0,
            request=request,
            response={"text": text, "calls": list(makes)},
        )
        self.calls.append(call)
        return self.tree.add_call(call)[-1]

    def roles(self, table: Table = KNOWN) -> dict[int, LeafRole]:
        return roles(self.tree, self.calls, table)
