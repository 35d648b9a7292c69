"""What the `scripted` engine says: a script looks at the conversation in a prompt and gives the answer's text.

A script is a function of the conversation alone, so that an answer goes on where it was cut when a call moves to
another engine. It is a TOML file of rules, or a Python function `package.module:name` or `path/file.py:name` that takes
a `Turn` and returns a `Reply`, a text, or None (the model samples freely). See docs/scripted-engine.md.
"""

import importlib.util
import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from qwengyre.errors import ConfigError, nearest
from qwengyre.plugin import named


@dataclass(frozen=True)
class Turn:
    """The conversation that an answer is asked for. `text` is the whole prompt, control tokens included; `messages`
    are (role, text) where the model writes ChatML, else one message with the whole. `execution`: "12-3"."""

    execution: str
    text: str
    messages: tuple[tuple[str, str], ...]

    @property
    def turns(self) -> int:
        """Assistant messages in this context so far."""
        return sum(role == "assistant" for role, _ in self.messages)

    @property
    def system(self) -> str:
        """Text of the system messages."""
        return "\n".join(text for role, text in self.messages if role == "system")

    @property
    def first(self) -> str:
        """Text of the first message that is no system message."""
        return next((text for role, text in self.messages if role != "system"), "")

    @property
    def last(self) -> str:
        """Text of the last message."""
        return self.messages[-1][1] if self.messages else ""


@dataclass(frozen=True)
class Reply:
    """An answer. `raw` is the text exactly as sampled, instead of `think`, `text` and `calls`, which are written as
    models of the Hermes family write them: a call is {"name": ..., "arguments": object, or the JSON text as it stands}.
    `finish` "length": the answer breaks off there, as if it had reached its limit."""

    text: str = ""
    calls: tuple[Mapping[str, Any], ...] = ()
    think: str = ""
    raw: str | None = None
    finish: Literal["stop", "length"] = "stop"

    def written(self, *, thinking: bool) -> str:
        """The text to sample. `thinking`: the prompt has opened the reasoning block already."""
        if self.raw is not None:
            return self.raw
        parts = [self.text] if self.text else []
        parts += (f"<tool_call>\n{_call(call)}\n</tool_call>" for call in self.calls)
        body = "\n".join(parts)
        if not self.think and not thinking:
            return body
        return f"{'' if thinking else '<think>'}\n{self.think}\n</think>\n\n{body}"


Script = Callable[[Turn], Reply | str | None]


def sampled(turn: Turn) -> None:
    """A script of no words: the model samples."""


class NoReplyError(Exception):
    """The script has no answer for this conversation."""


def load_script(source: str) -> Script:
    """The script that `engine.args.script` names. Raises ConfigError."""
    path, _, name = source.rpartition(":")
    if path.endswith(".py"):
        return _from_file(Path(path), name)
    if path:
        return named("engine.args.script", source, {})
    try:
        rules = tomllib.loads(Path(source).read_text("utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"engine.args.script={source!r} cannot be read ({error}): give a TOML file of rules, "
            "package.module:name or path/file.py:name"
        ) from None
    return Rules(source, rules)


def _from_file(path: Path, name: str) -> Script:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    try:
        if spec is None or spec.loader is None:
            raise ImportError("no Python file")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return getattr(module, name)
    except (OSError, AttributeError, ImportError, SyntaxError) as error:
        raise ConfigError(f"engine.args.script: {path}:{name} cannot be imported: {error}") from None


class Rules:
    """A script from a TOML file: the first rule whose conditions all hold answers."""

    def __init__(self, source: str, values: Mapping[str, Any]) -> None:
        _known(source, values, ("rule",))
        self._source = source
        self._rules = [_rule(f"{source}: rule {i}", rule) for i, rule in enumerate(values.get("rule", ()))]
        if not self._rules:
            raise ConfigError(f"{source} has no [[rule]]: nothing can be answered")

    def __call__(self, turn: Turn) -> Reply | None:
        """The answer. Raises NoReplyError."""
        for rule in self._rules:
            found = rule.matches(turn)
            if found is not None:
                return rule.reply(turn, found)
        raise NoReplyError(
            f"no rule of {self._source} fits execution {turn.execution or '?'} at turn {turn.turns}, after the message "
            f"{turn.last[-300:]!r}"
        )


@dataclass(frozen=True)
class _Rule:
    where: Mapping[str, re.Pattern[str]]
    turns: tuple[int, int] | None
    progress: re.Pattern[str] | None
    replies: tuple[Mapping[str, Any], ...]
    """Empty: the model samples."""

    def matches(self, turn: Turn) -> dict[str, str] | None:
        """The named groups of the patterns if the rule holds, else None."""
        if self.turns is not None and not self.turns[0] <= turn.turns <= self.turns[1]:
            return None
        groups: dict[str, str] = {}
        for field, pattern in self.where.items():
            found = pattern.search(turn.text if field == "any" else str(getattr(turn, field)))
            if found is None:
                return None
            groups |= {name: text or "" for name, text in found.groupdict().items()}
        return groups

    def reply(self, turn: Turn, groups: Mapping[str, str]) -> Reply | None:
        """The reply whose turn it is; the last one from then on."""
        if not self.replies:
            return None
        k = turn.turns
        if self.progress is not None:
            k = max((int(found[1]) for found in self.progress.finditer(turn.text)), default=-1) + 1
        chosen = _filled(self.replies[min(k, len(self.replies) - 1)], {**groups, "k": str(k)})
        calls = tuple(cast("Sequence[Mapping[str, Any]]", chosen.pop("calls", ())))
        return Reply(calls=calls, **chosen)


_WHERE = ("execution", "system", "first", "last", "any")
_REPLY = ("text", "calls", "think", "raw", "finish", "times")


def _rule(name: str, values: Mapping[str, Any]) -> _Rule:
    _known(name, values, (*_WHERE, "name", "turns", "progress", "replies", "sample"))
    if bool(values.get("replies")) == bool(values.get("sample")):
        raise ConfigError(f"{name}: give `replies`, or `sample = true`")
    try:
        where = {key: re.compile(values[key], re.DOTALL) for key in _WHERE if key in values}
        progress = re.compile(values["progress"]) if "progress" in values else None
    except (re.error, TypeError) as error:
        raise ConfigError(f"{name}: not a regular expression: {error}") from None
    if progress is not None and progress.groups != 1:
        raise ConfigError(f"{name}: progress needs one group, that of the number, e.g. 'step-([0-9]+)'")
    replies = [r for reply in values.get("replies", ()) for r in _reply(name, reply)]
    turns = values.get("turns")
    bounds = None if turns is None else (turns, turns) if isinstance(turns, int) else (turns[0], turns[1])
    return _Rule(where, bounds, progress, tuple(replies))


def _reply(name: str, value: Any) -> list[Mapping[str, Any]]:
    if isinstance(value, str):
        return [{"text": value}]
    _known(f"{name}, a reply", value, _REPLY)
    if value.get("finish", "stop") not in ("stop", "length"):
        raise ConfigError(f"{name}: finish={value['finish']!r}: expected 'stop' or 'length'")
    return [{k: v for k, v in value.items() if k != "times"}] * int(value.get("times", 1))


def _known(name: str, values: Mapping[str, Any], keys: Sequence[str]) -> None:
    unknown = next((key for key in values if key not in keys), None)
    if unknown is not None:
        raise ConfigError(f"{name}: unknown key '{unknown}': {nearest(unknown, list(keys))}")


def _filled(value: Any, words: Mapping[str, str]) -> Any:
    """`value` with {k} and the named groups put into its texts."""
    if isinstance(value, str):
        for word, text in words.items():
            value = value.replace("{" + word + "}", text)
        return value
    if isinstance(value, dict):
        return {key: _filled(inner, words) for key, inner in cast("dict[str, Any]", value).items()}
    return [_filled(inner, words) for inner in cast("list[Any]", value)] if isinstance(value, list) else value


def _call(call: Mapping[str, Any]) -> str:
    arguments = call.get("arguments", {})
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f'{{"name": {json.dumps(call["name"])}, "arguments": {text}}}'
