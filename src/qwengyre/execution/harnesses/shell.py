"""The built-in harness: `agents/shell_agent.py`, a small script of its own process that speaks OpenAI chat."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qwengyre.errors import ConfigError, nearest
from qwengyre.execution.harnesses.base import Door, Launch
from qwengyre.types import Query

AGENT = Path(__file__).parent / "agents" / "shell_agent.py"
_INSIDE = "/run/qwengyre/shell_agent.py"
EXAMPLE = ("List the files.", "ls")
_TURNS = {"block": 2, "answer": 1, "tools": 50}


class ShellHarness:
    """`style`: `block` runs the first bash block of a reply and gives a second chance; `answer` asks `max_turns` times
    and writes the last reply to answer.txt; `tools` offers a bash tool until the model stops calling it. `max_turns` 0:
    2, 1 and 50. `example`: a request and its command, the one that `block` shows before the instruction; without a name
    in it there is nothing that a model could copy into its answer."""

    def __init__(
        self,
        *,
        style: str = "block",
        max_turns: int = 0,
        command_timeout_s: float = 3.0,
        example: Sequence[str] = EXAMPLE,
    ):
        """Raises ConfigError for an unknown style or a value out of range."""
        if style not in _TURNS:
            raise ConfigError(f"harness.args.style='{style}' is unknown: {nearest(style, list(_TURNS))}")
        if isinstance(max_turns, bool) or not isinstance(max_turns, int) or max_turns < 0:
            raise ConfigError(f"harness.args.max_turns={max_turns!r}: expected a whole number, 0 for the style's own")
        if not isinstance(command_timeout_s, int | float) or command_timeout_s <= 0:
            raise ConfigError(f"harness.args.command_timeout_s={command_timeout_s!r}: expected seconds above 0")
        if len(example) != 2 or not all(isinstance(text, str) and "\0" not in text for text in example):
            raise ConfigError(f"harness.args.example={example!r}: expected two texts, a request and its command")
        self._example = tuple(example)
        self._style, self._turns, self._command_s = style, max_turns or _TURNS[style], float(command_timeout_s)

    @classmethod
    def of(cls, args: dict[str, Any]) -> "ShellHarness":
        """From `harness.args`. Raises ConfigError for an unknown name."""
        known = ["style", "max_turns", "command_timeout_s", "example"]
        for name in args:
            if name not in known:
                raise ConfigError(f"unknown key 'harness.args.{name}': {nearest(name, known)}")
        return cls(**args)

    @property
    def mounts(self) -> dict[str, str]:
        """The script."""
        return {_INSIDE: str(AGENT)}

    def launch(self, query: Query, door: Door) -> Launch:
        """See `Harness.launch`. The instruction travels in a file: it may be longer than an argument can be."""
        options = [self._style, str(self._turns), str(self._command_s), *self._example]
        env = {"OPENAI_BASE_URL": door.base_url, "OPENAI_API_KEY": door.api_key, "OPENAI_MODEL": door.model}
        return Launch(("python3", "-I", "-S", _INSIDE, *options), env, {"instruction.md": query.instruction})
