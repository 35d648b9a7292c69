"""Harnesses as data: one TOML file each in this folder says what it is, how it is installed and started, how its
requests say what they belong to, and what it does to its own history.

    read("mini-swe-agent") -> Profile        names() -> every profile that ships
"""

import re
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from qwengyre.errors import ConfigError, nearest

FOLDER = Path(__file__).parent
NODE = "node"
"""The one profile that is no harness: the Node that others are installed and run with."""
Role = Literal["main", "summary", "sub-agent", "auxiliary"]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _expression(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return pattern


class Install(_Part):
    """How it comes onto this machine. `program`, below its folder (a glob), must be there afterwards.

    `pip`: a virtual environment of its own, with `packages` at exact versions and the rest as in `constraints` (a file
    beside the profile). `npm`: with the pinned Node; no package's install script runs; `before` fixes the rest by date.
    """

    kind: Literal["pip", "npm"]
    packages: tuple[str, ...] = Field(min_length=1)
    program: str
    constraints: str = ""
    before: str = ""
    megabytes: int = Field(gt=0)
    """Size on disk, for the line that says what is coming."""
    seconds: int = Field(gt=0)


class Launch(_Part):
    """How one execution starts it. In `command`, `env` and `files` (below the agent's home) these stand for values:
    {base_url} {root_url} (without /v1) {api_key} {model} {instruction} {workdir} {home} {prefix} {program} {node} and
    the names of `args`, which hold what `[harness.args]` may set."""

    command: tuple[str, ...] = Field(min_length=1)
    env: dict[str, str] = {}
    files: dict[str, str] = {}
    args: dict[str, str | int] = {}


class Signals(_Part):
    """Where a request says what it belongs to: `header:NAME` or `body:KEY.KEY`, with `#KEY` for a key of JSON text
    found there. The first that a request has counts. None: the thread is told by system text and tools."""

    session: tuple[str, ...] = ()
    thread: tuple[str, ...] = ()
    sub_agent: tuple[str, ...] = ()
    """Present in a sub-agent's requests only."""
    parent: tuple[str, ...] = ()
    kind: tuple[str, ...] = ()
    """Names the kind of a request; `kinds` maps its values to roles."""
    kinds: dict[str, Role] = {}

    @field_validator("session", "thread", "sub_agent", "parent", "kind")
    @classmethod
    def _places(cls, places: tuple[str, ...]) -> tuple[str, ...]:
        for place in places:
            if not re.fullmatch(r"(header:[a-z0-9-]+|body:[a-z0-9_.]+)(#[a-z0-9_.]+)?", place):
                raise ValueError(f"'{place}' is neither header:name nor body:key.key, in lower case")
        return places


class Cut(_Part):
    """A part of an argument, by pattern, that may be missing when the call comes back."""

    tool: str
    argument: str
    pattern: str

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        return _expression(pattern)


class Edits(_Part):
    """What it does to tool calls before it sends them back. Without an entry, another value is a change.

    `renamed`: the name that comes back -> the one that was sent, `*` where name and arguments say nothing any more.
    `fills`: an empty, false or null argument is added or left out. `trims`: blanks at line ends go.
    """

    renamed: dict[str, str] = {}
    cut: tuple[Cut, ...] = ()
    fills: bool = False
    trims: bool = False


class Marker(_Part):
    """A text that gives a request away: `pattern` (searched in lower case) in its `system` text, in its `first_user` or
    `last_user` text, or `no_tools` in a thread that had tools (no pattern)."""

    role: Role
    where: Literal["system", "first_user", "last_user", "no_tools"]
    pattern: str = ""

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        return _expression(pattern)


class Fork(_Part):
    """A place where a call does not extend the call before it though the thread goes on, and why."""

    name: str
    why: str


class Waiting(_Part):
    """How long it waits without a word, as configured here, and for what. 0: for ever. Keep-alive: what counts."""

    headers_s: int = 0
    idle_s: int = 0
    keepalive: Literal["any byte", "data event", "none"] = "any byte"
    tries: int = 0
    """Requests before it gives up on errors; 0: unknown or endless."""


class Needs(_Part):
    """The least that a sandbox must allow."""

    memory_mb: int = 256
    pids: int = 32
    window: int = 0
    """Tokens of its own prompt and one short turn, about; 0: a few hundred."""


class Profile(_Part):
    """One harness at one version."""

    name: str
    version: str
    about: str
    licence: str
    protocol: Literal["chat", "responses", "anthropic", "gemini", ""]
    install: Install
    launch: Launch
    signals: Signals = Signals()
    edits: Edits = Edits()
    markers: tuple[Marker, ...] = ()
    known_forks: tuple[Fork, ...] = ()
    waiting: Waiting = Waiting()
    needs: Needs = Needs()

    @property
    def key(self) -> str:
        """Its folder's name in the cache."""
        return f"{self.name}-{self.version}"


def names() -> list[str]:
    """Every harness that has a profile here."""
    return sorted(file.stem for file in FOLDER.glob("*.toml") if file.stem != NODE)


def read(name: str) -> Profile:
    """The profile `name`. Raises ConfigError for an unknown one, and for a broken file."""
    file = FOLDER / f"{name}.toml"
    if name != NODE and name not in names():
        raise ConfigError(f"harness '{name}' is unknown: {nearest(name, names())}")
    try:
        return Profile.model_validate(tomllib.loads(file.read_text()))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not a TOML file: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{file}: {key}: {first['msg'][0].lower()}{first['msg'][1:]}") from None


def told(kind: str) -> dict[str, Any]:
    """What the harness `kind` gives away of its requests (`signals`, `markers`), as plain data; {} without profile."""
    return read(kind).model_dump(include={"signals", "markers"}) if kind in names() else {}


def edits(*kinds: str) -> dict[str, Any]:
    """What the harnesses `kinds` do to tool calls, together, as plain data; those without a profile do nothing."""
    known = [read(kind).edits for kind in kinds if kind in names()]
    return {
        "renamed": {back: sent for e in known for back, sent in e.renamed.items()},
        "cut": [[c.tool, c.argument, c.pattern] for e in known for c in e.cut],
        "fills": any(e.fills for e in known),
        "trims": any(e.trims for e in known),
    }
