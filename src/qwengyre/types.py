"""Frozen values that cross packages. Each stage's input type is the previous stage's output type:

Query -> ExecutionId -> ModelCall -> (Tree) -> Trajectory -> MicroStep
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]
"""Token ids, int32, one dimension. Never a Python list."""
Floats = NDArray[np.float32]
Mask = NDArray[np.bool_]


class ExecutionId(NamedTuple):
    """One execution: member `member` of group `group`. Its text form `12-3` names folders, files and HTTP fields.

    Those of an evaluation belong to no group, and are never trained: `of_evaluation(0, 3)`, in text `eval0-3`.
    """

    group: int
    member: int

    def __str__(self) -> str:
        return f"{self.group}-{self.member}" if self.group >= 0 else f"eval{self.evaluation}-{self.member}"

    @classmethod
    def of_evaluation(cls, evaluation: int, member: int) -> "ExecutionId":
        """Member `member` of evaluation `evaluation` (from 0): its group number is below every group's."""
        return cls(-1 - evaluation, member)

    @property
    def evaluation(self) -> int:
        """The evaluation that it belongs to; negative for an execution that is trained."""
        return -1 - self.group

    @classmethod
    def parse(cls, text: str) -> "ExecutionId":
        """Inverse of `str`. Raises ValueError on any other text."""
        group, member = text.split("-")
        if group.startswith("eval"):
            return cls.of_evaluation(int(group.removeprefix("eval")), int(member))
        return cls(int(group), int(member))


class Role(StrEnum):
    """What a cell does. The two `to_` roles are transitions in progress: asked for, not yet done."""

    ROLLOUT = "rollout"
    TO_TRAINING = "to_training"
    TRAINING = "training"
    TO_ROLLOUT = "to_rollout"
    LOST = "lost"


class Ending(StrEnum):
    """Why the harness of an execution is over. The first three are scored (design section 8)."""

    FINISHED = "finished"
    HARNESS_TIMEOUT = "harness_timeout"
    HARNESS_CRASH = "harness_crash"
    OVERALL_TIMEOUT = "overall_timeout"
    NOTHING_TO_ASSESS = "nothing_to_assess"
    LOST = "lost"


class Verdict(StrEnum):
    """How an execution settled. Only `dropped` leaves the group's baseline and E."""

    SCORED = "scored"
    PLACEHOLDER = "placeholder"
    DROPPED = "dropped"


@dataclass(frozen=True)
class Settlement:
    """The end of an execution's life.

    `score` is in [0, 1]; 0 for a placeholder, meaningless when dropped. `reason` is one line for a human.
    `work` is the hex SHA-256 of the frozen work product ("" when nothing was frozen). `detail` holds raw counts.
    """

    verdict: Verdict
    score: float = 0.0
    reason: str = ""
    work: str = ""
    detail: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Limits:
    """What one execution may use. Seconds of active time for the agent, of wall time for the whole and the verifier."""

    agent_s: float
    overall_s: float
    verifier_s: float
    memory_mb: int
    pids: int
    disk_mb: int


@dataclass(frozen=True)
class Query:
    """One task instance, as a task set's reader found it. All paths are absolute, on the box's file system.

    `image` is the task's `docker_image` ("" if none); `[sandbox.images]` says what it means on this machine.
    `environment` is a folder copied into `workdir` before the harness starts ("" if none); `tests` is the trusted
    folder laid over the graded copy. `env` are plain environment variables for harness and verifier.
    """

    name: str
    instruction: str
    image: str
    workdir: str
    environment: str
    tests: str
    limits: Limits
    env: dict[str, str] = field(default_factory=dict[str, str])
    verifier_env: dict[str, str] = field(default_factory=dict[str, str])
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Sampling:
    """How the policy is sampled in a run. The rest (top_p, top_k, min_p, penalties, logit_bias) is off by design."""

    temperature: float
    max_tokens: int


@dataclass(frozen=True)
class Place:
    """Where a cell's engine listens. `incarnation` grows with every restart; older messages are refused."""

    url: str
    incarnation: int


@dataclass(frozen=True)
class Routes:
    """Immutable routing snapshot, replaced as a whole; a gateway acknowledges `epoch`.

    `homes` maps the text form of an ExecutionId to a cell. An execution without a home, or whose home is not in
    `cells`, has its calls queued until newer routes arrive.
    """

    epoch: int
    cells: dict[int, Place]
    homes: dict[str, int]


class Kind(IntEnum):
    """What a row of a tree holds. The training mask is derived from it: only SAMPLED rows are trainable."""

    CONTEXT = 0
    GLUE = 1
    SAMPLED = 2


class Segment(NamedTuple):
    """A run of a call's suffix: `length` tokens of `kind` (CONTEXT or GLUE). One message is one segment."""

    kind: Kind
    length: int


@dataclass(frozen=True)
class Stretch:
    """Output tokens [start, end) of a call, generated by one engine under one weight version.

    `cause` says why the stretch ended: stop, length, abort, error. Version and engine are as the engine reported.
    `kv_version` is the oldest weight set that made keys and values it was conditioned on, where those were kept across
    a publish (-1: they are all of `version`).
    """

    start: int
    end: int
    version: int
    engine: str
    cause: str
    kv_version: int = -1


@dataclass(frozen=True)
class KVStamp:
    """What keys and values are only valid under: two stamps are equal, or the tokens are computed again.

    `version` is the oldest weight set that made any of them; `model` the digest of the model's configuration and
    parameter shapes; `shape` is (layers, key heads, head width).
    """

    version: int
    model: str
    dtype: str
    shape: tuple[int, int, int]


@dataclass(frozen=True)
class KVBlock:
    """Keys and values of one token sequence on their way to another engine.

    `id` is unique in the run; `handles` name the executions whose sequence it is; `ids` are its T tokens (int32);
    `data` is a tensor [2 (K, V), layers, T, key heads, head width] in the stamp's dtype, never written to.
    """

    id: str
    stamp: KVStamp
    handles: frozenset[str]
    ids: Ids
    data: Any

    @property
    def tokens(self) -> int:
        """T."""
        return len(self.ids)


@dataclass(frozen=True)
class ModelCall:
    """One finished logical model call, exactly as sampled; what a journal of calls holds.

    Conditioning ids = ids of the path to tree row `parent` (-1: the root) + `suffix`. `segments` cut the suffix.
    `output` are the sampled ids, the stop token included; `logprobs` (same length, float32) are log-probabilities
    under the distribution that was sampled: fp32 log-softmax of logits / temperature. `thread` is the fingerprint of
    the context line. `trainable` is False for calls under a grammar or a forced tool choice.
    `request` and `response` are the wire bodies' new parts, for humans and for `inspect`; training never reads them.

    Example: 3 suffix ids, 2 sampled
        ModelCall(call=0, parent=-1, suffix=[1, 5, 9], segments=((CONTEXT, 2), (GLUE, 1)), output=[7, 2],
                  logprobs=[-0.5, -0.1], stretches=(Stretch(0, 2, version=0, engine="cell0.1", cause="stop"),), ...)
    """

    call: int
    thread: str
    parent: int
    suffix: Ids
    segments: tuple[Segment, ...]
    output: Ids
    logprobs: Floats
    stretches: tuple[Stretch, ...]
    finish: str
    temperature: float
    trainable: bool = True
    match: str = ""
    request: dict[str, Any] = field(default_factory=dict[str, Any])
    response: dict[str, Any] = field(default_factory=dict[str, Any])
    timings: dict[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True)
class Trajectory:
    """One selected root-to-leaf path of an execution's tree, with what it trains.

    `ids`, `logprobs` and `selected` have the path's length T. `selected` marks the targets this trajectory
    contributes: sampled, delivered, and not contributed by an earlier trajectory of the execution.
    `role` is the class of the leaf; `leaf` its row. `versions` are runs (end, version) over the selected targets.
    `rows` (int32, T) is the tree's row of each sampled token, -1 for context and glue.
    """

    execution: ExecutionId
    leaf: int
    role: str
    ids: Ids
    logprobs: Floats
    selected: Mask
    temperature: float
    rows: Ids
    versions: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class MicroStep:
    """The field's micro-batch: what a cell claims, runs forward and backward, and adds to its gradient.

    `ids` are the concatenated runs (int32, T tokens), `lengths` cut them (sum = T). Without `parents` each run is a
    whole sequence (flat rows). Else it is a tree in depth-first order: run k continues the token `ids[parents[k]]` of
    an earlier run (-1: it begins a sequence), so that a shared prefix stands once; each run still ends a sequence.
    `weights[t]` (float32) is the weight of predicting `ids[t]` from the tokens before it in its sequence: A_e / T_e for
    a selected target, else 0 (always 0 for the first token of a sequence). `logprobs[t]` is the recorded behaviour
    log-probability. The weight travels with the data: a trainer does not know what an advantage is. `calls[t]` (int32)
    is equal for the tokens of one model call, 0 for context; None: each stretch of targets in a run is one call.
    `shares[t]` (float32) is 1 / T_e for a selected target, else 0: the weight of loss terms that know no advantage;
    None where there are none of these.

    Example: two sequences of 3 and 2 tokens, two targets of an execution with A = 0.5, T_e = 2
        ids [1 5 7 | 1 7], lengths (3, 2), weights [0 0 .25 | 0 .25]
    the same as a tree
        ids [1 5 7 | 7], lengths (3, 1), parents (-1, 0), weights [0 0 .25 | .25]
    """

    name: str
    group: int
    ids: Ids
    lengths: tuple[int, ...]
    weights: Floats
    logprobs: Floats
    temperature: float
    parents: tuple[int, ...] = ()
    calls: Ids | None = None
    shares: Floats | None = None

    @property
    def tokens(self) -> int:
        """T."""
        return len(self.ids)

    @property
    def wanted(self) -> Mask:
        """The targets (bool, T)."""
        weighted: Mask = self.weights != 0
        return weighted if self.shares is None else weighted | (self.shares != 0)


@dataclass(frozen=True)
class Phase:
    """How far something slow is that a command does before a run: told again and again, the last time with `over`.

    One that is told once, `over`, is a plain message. `total` 0: not known. `unit`: "B" for bytes, else a plural noun.
    """

    what: str
    done: float = 0.0
    total: float = 0.0
    unit: str = ""
    over: bool = False

    def __str__(self) -> str:
        return self.what


Progress = Callable[[Phase], None]
"""Who is told of phases: the terminal, or nobody."""
