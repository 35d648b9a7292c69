"""One tree of frozen values: TOML files, then `section.key=value` words, later wins. Unknown keys are errors.

Imported by `cli` and `cluster` only; everything else receives plain values. Few keys: what can be derived is derived.
"""

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from qwengyre.errors import ConfigError, nearest
from qwengyre.wording import expected, foreign


class Section(BaseModel):
    """A section of the configuration: frozen, and strict about unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class Run(Section):
    """How long the run is, and the seed of everything random in it."""

    steps: int = Field(default=2, ge=0)
    """0: no training, `eval.before` alone."""
    seed: int = Field(default=0, ge=0)


class Model(Section):
    """`name`: `smollm2-135m-instruct` (the default), `tiny` (from scratch, for tests), a local HF folder, a hub id."""

    name: str = "smollm2-135m-instruct"
    chat_template: str = ""
    """A jinja file; "" takes the model's own (for the default model, the shipped one, which has tools)."""


class Tasks(Section):
    """`kind`: a built-in generator (`quickstart`, `two-part`, `letters`), `harbor` with `path` (folders), `verl` or
    `slime` with `path` (a file of prompts), or `package.module:Class`."""

    kind: str = "quickstart"
    path: str = ""
    count: int = Field(default=100, ge=1)
    split: Literal["train", "held_out"] = "train"
    shuffle: bool = False


class Harness(Section):
    """What runs in the sandbox and only knows a URL. `kind`: `shell`, a real one by name (`qwengyre harness list`),
    which is installed when it is not there, `command` with a command template, or `package.module:Class`.

    In `command`, `env` and `files` these stand for values: {base_url} {root_url} (without /v1) {api_key} {model}
    {instruction} {workdir} {home}. A file is its text, or `{ path = "..." }`, relative to the configuration file.
    """

    kind: str = "shell"
    command: tuple[str, ...] = ()
    env: dict[str, str] = {}
    files: dict[str, str] = {}
    mounts: tuple[str, ...] = ()
    """Host folders bound read-only at the same path (a harness's own virtual environment, say)."""
    args: dict[str, Any] = {}
    """Options of a harness; for `shell`: max_turns, style; for a real one: see its profile."""
    timeout_s: float = Field(default=300.0, gt=0)
    """Active time of one execution; queueing and moves do not count."""
    overall_timeout_s: float = Field(default=3600.0, gt=0)
    """Wall time of one execution, everything included."""


class Sandbox(Section):
    """`bwrap` isolates; `process` does not and must be asked for."""

    kind: str = "bwrap"
    images: dict[str, str] = {}
    """What a task's docker_image means here: a root folder, or `host` (this machine's own /usr, read-only)."""
    memory_mb: int = Field(default=1024, ge=16)
    pids: int = Field(default=128, ge=4)
    disk_mb: int = Field(default=256, ge=1)
    concurrent: int = Field(default=4, ge=1)
    """Verifiers that one box runs at once."""


class Scoring(Section):
    """A failed evaluation is retried on the same frozen work, then the execution is dropped."""

    verifier: str = "task"
    """`task`: what each task says; or one for all of them, `package.module:Class`."""
    retries: int = Field(default=2, ge=0)
    timeout_s: float = Field(default=600.0, gt=0)
    """Most wall time of one evaluation, whatever the task says."""


class RL(Section):
    """The paper's letters: B groups a step, N executions a group, mu steps a burst, phi look-ahead, Jmax."""

    groups_per_step: int = Field(default=5, ge=1)
    group_size: int = Field(default=8, ge=2)
    mu: int = Field(default=1, ge=1)
    phi: int = Field(default=0, ge=0)
    slack: int = Field(default=0, ge=0)
    jmax: int = Field(default=5, ge=1)
    advantage_std: bool = False
    """Advantages are divided by the standard deviation of the group's scores, beside having its mean taken off."""
    temperature: float = Field(default=0.8, gt=0)
    max_tokens: int = Field(default=24, ge=1)
    """Most tokens of one model call; a harness that asks for more gets this."""


class Eval(Section):
    """Evaluation of published weights on tasks that are not trained: `before` the first step, at the first publish
    after each `every` steps (0: none in between), `after` the last publish. Training waits meanwhile.

    `count` tasks of the `split`, `samples` executions of each at `temperature`, and a greedy one. `kind` and `path` as
    in [tasks]; "" takes those of [tasks]. A folder of tasks has no split: give another `path`, or the tasks are those
    that are trained.
    """

    before: bool = False
    after: bool = False
    every: int = Field(default=0, ge=0)
    kind: str = ""
    path: str = ""
    split: Literal["train", "held_out"] = "held_out"
    count: int = Field(default=50, ge=1)
    samples: int = Field(default=4, ge=0)
    greedy: bool = True
    """One execution more of each task, at temperature 0."""
    temperature: Annotated[float, Field(ge=0)] | Literal["auto"] = "auto"
    """Of the samples; `auto`: rl.temperature."""


class Trainer(Section):
    """`kind`: `torch`, `emulated` (no model, at a modelled speed) or a dotted path; `args` pass through to it.

    Defaults are full fine-tuning in fp32; with `lora_rank`, low-rank adapters.
    """

    kind: str = "torch"
    args: dict[str, Any] = {}
    loss: Literal["cispo", "ppo", "gspo"] = "cispo"
    """`cispo`: the ratio is capped and has no gradient; `ppo`: clipped for each token; `gspo`: for each model call."""
    clip: tuple[float, float] | Literal["auto"] = "auto"
    """The lowest and highest ratio to the recorded log-probs that the loss follows. `auto`: cispo [0, 5], ppo
    [0.8, 1.28], gspo [0.9997, 1.0004]."""
    kl_coefficient: float = Field(default=0.0, ge=0)
    """Times the KL divergence from the model that the run began with, over all targets of all settled executions: one
    more forward pass, and (without adapters) one more copy of the weights in each cell."""
    entropy_coefficient: float = Field(default=0.0, ge=0)
    """Times the entropy of the policy at these targets, which is to stay high."""
    learning_rate: float = Field(default=3e-5, ge=0)
    """The highest; `schedule` says how it goes on after the first `warmup_steps`."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = Field(default=0, ge=0)
    lora_rank: int = Field(default=0, ge=0)
    """0: all weights are trained. Adapters usually take ten times the learning rate."""
    lora_alpha: float = Field(default=32.0, gt=0)
    """Adapters are scaled by lora_alpha / lora_rank."""
    lora_targets: tuple[str, ...] = ()
    """Names of linear layers; empty: all of them but the output embeddings."""
    weight_decay: float = Field(default=0.0, ge=0)
    clip_norm: float = Field(default=1.0, gt=0)
    microstep_tokens: int = Field(default=1024, ge=16)
    packing: Literal["auto", "flat"] = "auto"
    """`auto`: prefixes that sequences of a group share are computed once, where the model allows it and it saves."""
    max_sequence: int = Field(default=2048, ge=32)
    """Longest trajectory that can be trained; the window served is the least of model, engine and this."""

    @field_validator("clip")
    @classmethod
    def _bounds(cls, clip: tuple[float, float] | str) -> tuple[float, float] | str:
        if isinstance(clip, tuple) and not 0 <= clip[0] <= 1 <= clip[1]:
            raise ValueError("expected [low, high] with 0 <= low <= 1 <= high")
        return clip


class Engine(Section):
    """`kind`: `embedded`, `scripted`, `emulated` (no model, at a modelled speed) or a dotted path. `args` pass through
    to it."""

    kind: str = "embedded"
    args: dict[str, Any] = {}


class Cells(Section):
    """`count` elastic cells, of which the first is the core, and `standalone` rollout cells, which never train.

    `executions`: C_e, unfinished executions that one cell takes.
    """

    count: int = Field(default=1, ge=1)
    standalone: int = Field(default=0, ge=0)
    executions: int = Field(default=64, ge=1)


class Policy(Section):
    """How cells move between rollout and training.

    `elastic`: one cell at a time, the core first, as soon as the cells that stay have room for every unfinished
    execution; all return at the burst's end. `gyre`: as elastic, but a further cell only if a micro-step waits for each
    that trains already. `colocate`: all cells roll out until the burst's data are complete, then all train. `async`:
    the first `training` cells always train, the rest (and the standalone ones) always roll out.
    """

    kind: Literal["gyre", "elastic", "colocate", "async"] = "gyre"
    training: int = Field(default=1, ge=1)
    """Cells that train, for `async`."""
    streaming: bool | Literal["auto"] = "auto"
    """Whether a finished group is trained before its step's others are there. `auto`: for `gyre` and `elastic`."""


class Checkpoint(Section):
    """A HF folder after every `every`-th publish, the newest `keep` of them (0: all)."""

    every: int = Field(default=1, ge=1)
    keep: int = Field(default=2, ge=0)


class Gateway(Section):
    """The HTTP door of the harnesses. Port 0 takes a free one; the address is always loopback."""

    port: int = Field(default=0, ge=0, le=65535)
    body_limit_mb: int = Field(default=64, ge=1)


class Cluster(Section):
    """Ray: `local` starts one for this run; an address joins an existing cluster."""

    address: str = "local"
    watchdog_s: float = Field(default=300.0, gt=0)
    """The run ends with exit 1 when nothing has happened for so long."""
    cell: dict[str, float] = {"CPU": 1}
    """What one cell takes of a joined cluster, in Ray's words (CPU, GPU, ...)."""
    placement_s: float = Field(default=120.0, gt=0)
    """All cells have a place in a joined cluster within this, or the run does not start."""


class Observe(Section):
    """What else hears of a run. The plain files of the run folder are always written."""

    tensorboard: bool = False
    """The same numbers in `tensorboard/` of the run folder."""


class Config(Section):
    """The whole configuration; `config.toml` in a run folder is this, resolved."""

    run: Run = Run()
    model: Model = Model()
    tasks: Tasks = Tasks()
    harness: Harness = Harness()
    sandbox: Sandbox = Sandbox()
    scoring: Scoring = Scoring()
    rl: RL = RL()
    eval: Eval = Eval()
    trainer: Trainer = Trainer()
    engine: Engine = Engine()
    cells: Cells = Cells()
    policy: Policy = Policy()
    checkpoint: Checkpoint = Checkpoint()
    gateway: Gateway = Gateway()
    cluster: Cluster = Cluster()
    observe: Observe = Observe()


Tree = TypeVar("Tree", bound=BaseModel)


def load(files: list[Path], overrides: list[str]) -> Config:
    """Read TOML files and `section.key=value` words into one Config, later wins. Raises ConfigError."""
    merged: dict[str, Any] = {}
    for file in files:
        merged = _merge(merged, _read(file))
    return resolve(overlaid(merged, overrides))


def overlaid(values: dict[str, Any], overrides: list[str]) -> dict[str, Any]:
    """A nested dict under `section.key=value` words, later wins. Raises ConfigError."""
    for word in overrides:
        values = _merge(values, _override(word))
    return values


def resolve(values: dict[str, Any], kind: type[Tree] = Config) -> Tree:
    """Validate a nested dict. Raises ConfigError naming the key, what was given, and the nearest known key."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        path = [str(p) for p in first["loc"]]
        key = ".".join(path)
        if first["type"] == "extra_forbidden":
            near = nearest(path[-1], _known(path[:-1], kind))
            raise ConfigError(f"unknown key '{key}': {foreign(key, values) or near}") from None
        raise ConfigError(f"{key}={first['input']!r}: {expected(first)}") from None


def dump(config: Config) -> str:
    """The configuration as TOML text, every key resolved, in the order of the tree."""
    lines: list[str] = ["schema_version = 1", ""]
    for section, values in config.model_dump(mode="json").items():
        lines += [f"[{section}]", *(f"{key} = {_toml(value)}" for key, value in values.items()), ""]
    return "\n".join(lines)


def _toml(value: Any) -> str:
    """One inline TOML value (JSON's strings are TOML's basic strings)."""
    import json

    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return "{" + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in items) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(v) for v in cast("list[Any]", value)) + "]"
    return json.dumps(value)


def _read(file: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(file.read_text())
    except FileNotFoundError:
        raise ConfigError(f"no configuration file at {file}: give the path of a TOML file") from None
    except IsADirectoryError:
        raise ConfigError(f"{file} is a folder: give the path of a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, PermissionError) as error:
        raise ConfigError(f"{file} is not a TOML file: {error}") from None
    values.pop("schema_version", None)
    if isinstance(harness := values.get("harness"), dict):
        _take_in(cast("dict[str, Any]", harness).get("files"), file)
    return values


def _take_in(files: Any, beside: Path) -> None:
    """`{ path = "..." }` in harness.files becomes the text of that file, so that a run folder holds all of it."""
    for name, value in cast("dict[str, Any]", files if isinstance(files, dict) else {}).items():
        if isinstance(value, dict) and list(cast("dict[str, Any]", value)) == ["path"]:
            source = beside.parent / str(cast("dict[str, Any]", value)["path"])
            try:
                files[name] = source.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(
                    f"harness.files: '{name}' in {beside}: {source} cannot be read ({error}); give a text file's path, "
                    "relative to the configuration file"
                ) from None


def _override(word: str) -> dict[str, Any]:
    key, equals, text = word.partition("=")
    parts = key.split(".")
    if not equals or len(parts) < 2:
        raise ConfigError(f"'{word}' is neither a file that exists nor section.key=value")
    try:
        value = tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        value = text  # an unquoted string
    for part in reversed(parts):
        value = {part: value}
    return cast("dict[str, Any]", value)


def _merge(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    merged = dict(old)
    for key, value in new.items():
        before = merged.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            merged[key] = _merge(cast("dict[str, Any]", before), cast("dict[str, Any]", value))
        else:
            merged[key] = value
    return merged


def _known(path: list[str], model: type[BaseModel]) -> list[str]:
    """Names known at a section path; the sections themselves at the top."""
    for part in path:
        field = model.model_fields.get(part)
        if field is None or not isinstance(field.annotation, type) or not issubclass(field.annotation, BaseModel):
            return []
        model = field.annotation
    return list(model.model_fields)
