"""From a model's output text to reasoning, text and tool calls. Pure; what is malformed stays text.

Tool calls are Hermes blocks: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`. Reasoning is what stands
before `</think>`, when the output opens with `<think>` or the generation prompt has opened it.
"""

import json
from dataclasses import dataclass
from typing import Any, NoReturn

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True)
class Parsed:
    """`raw` is the whole text, the end of the turn stripped; `calls` are (name, arguments as JSON text)."""

    raw: str
    text: str
    calls: tuple[tuple[str, str], ...] = ()
    reasoning: str = ""


def parse(raw: str, *, tools: bool, thinking: bool = False) -> Parsed:
    """Split an output. `tools`: look for tool calls; `thinking`: the generation prompt opened a reasoning block."""
    reasoning, text = _split_reasoning(raw, thinking)
    if not tools or _OPEN not in text:
        return Parsed(raw, text, (), reasoning)
    kept, calls = _split_calls(text)
    return Parsed(raw, kept.rstrip() if calls else text, tuple(calls), reasoning)


def _split_reasoning(raw: str, thinking: bool) -> tuple[str, str]:
    start = raw.lstrip()
    if start.startswith("<think>"):
        start = start.removeprefix("<think>")
    elif not thinking:
        return "", raw
    reasoning, _, text = start.partition("</think>")
    return reasoning.strip(), text.lstrip("\n")


def _split_calls(text: str) -> tuple[str, list[tuple[str, str]]]:
    kept: list[str] = []
    calls: list[tuple[str, str]] = []
    at = 0
    while (found := text.find(_OPEN, at)) >= 0:
        call = _call(text, found + len(_OPEN))
        kept.append(text[at:found])
        if call is None:
            kept.append(_OPEN)
            at = found + len(_OPEN)
            continue
        name, arguments, at = call
        calls.append((name, arguments))
        if not text[at:].strip():
            at = len(text)
    kept.append(text[at:])
    return "".join(kept), calls


def _call(text: str, start: int) -> tuple[str, str, int] | None:
    """One call's name, arguments and end, or None where the block is not exactly one well-formed call."""
    start += len(text[start:]) - len(text[start:].lstrip())
    try:
        value, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    close = end + len(text[end:]) - len(text[end:].lstrip())
    if not text.startswith(_CLOSE, close) or not isinstance(value, dict):
        return None
    name, arguments = value.get("name"), value.get("arguments", {})
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    written = json.dumps(arguments, ensure_ascii=False)
    return (name, written, close + len(_CLOSE)) if _writable(name + written) else None


def _writable(text: str) -> bool:
    """False for half a surrogate pair, which JSON can escape and UTF-8 cannot hold."""
    return not any("\ud800" <= c <= "\udfff" for c in text)


def _no_constants(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


_DECODER: Any = json.JSONDecoder(parse_constant=_no_constants)
