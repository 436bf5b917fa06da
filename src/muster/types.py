"""The nouns of Muster.

Law: frozen, slotted, keyword-only data with no behaviour beyond reading itself; numpy at most, never torch.
Five stages read these and nobody runs them.

    Task ─► Group (G attempts) ─► Trajectory (segments, turns, spans) ─► Outcome ─► ReadyGroup ─► Batch

Shapes are suffixes: `tokens_T` has one entry per token of its segment. Times are seconds on `clock.now()`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]
Evidence = Mapping[str, Any]

UNSAMPLED = -1
"""Version of a token that no engine sampled (prompt or observation)."""


# --- outcomes -----------------------------------------------------------------------------------------


class Verdict(StrEnum):
    """How a trajectory ended. Only the first two were graded by fact and may carry a reward."""

    SUCCESS = "success"  # the verifier accepted the agent's final state
    FAILURE = "failure"  # the verifier rejected it, or the model's own doing made grading moot
    INFRA = "infra"  # our machinery failed; says nothing about the model
    UNKNOWN = "unknown"  # the evidence is missing or contradicts itself


class Cause(StrEnum):
    """Why it ended so. One sentence per value; the report counts by these."""

    VERIFIER_PASSED = "verifier_passed"  # the agent stopped by itself and the verifier accepted
    VERIFIER_FAILED = "verifier_failed"  # the agent stopped by itself and the verifier rejected
    TURN_BUDGET = "turn_budget"  # all turns used; the final state was graded
    TOKEN_BUDGET = "token_budget"  # all generated tokens used; the final state was graded
    CONTEXT_BUDGET = "context_budget"  # the context is full; the final state was graded
    TIME_BUDGET = "time_budget"  # the model's own commands and tokens used up its time; graded
    SANDBOX_DESTROYED_BY_AGENT = "sandbox_destroyed_by_agent"  # its own counters or exit show it
    VERIFIER_BROKEN_BY_AGENT = "verifier_broken_by_agent"  # fails on its state twice, healthy on the control
    TAMPERED = "tampered"  # tests, toolchain or reward channel were touched
    IMAGE_FAILED = "image_failed"  # the task's image could not be built
    SANDBOX_START_FAILED = "sandbox_start_failed"  # the sandbox never answered
    SANDBOX_LOST = "sandbox_lost"  # it vanished with no sign of the model's doing
    ENGINE_FAILED = "engine_failed"  # the engine refused, died or timed out
    VERIFIER_FAULT = "verifier_fault"  # the verifier fails on the untouched control as well
    TRANSPORT = "transport"  # some other boundary failed
    EVIDENCE_CONTRADICTORY = "evidence_contradictory"  # repeated verification disagreed with itself
    EVIDENCE_MISSING = "evidence_missing"  # an error that no rule covers
    UNSCORABLE = "unscorable"  # the scorer says that it cannot tell


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """An outcome established by fact. The only outcome with a reward.

    Example: `Graded(verdict=Verdict.SUCCESS, reward=1.0, cause=Cause.VERIFIER_PASSED)`
    """

    verdict: Literal[Verdict.SUCCESS, Verdict.FAILURE]
    reward: float
    cause: Cause
    evidence: Evidence = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        assert self.verdict in (Verdict.SUCCESS, Verdict.FAILURE), self.verdict
        assert np.isfinite(self.reward), self.reward


@dataclass(frozen=True, slots=True, kw_only=True)
class Ungraded:
    """An outcome that says nothing about the model. It has no reward attribute, on purpose.

    Example: `Ungraded(verdict=Verdict.INFRA, cause=Cause.SANDBOX_LOST, evidence={"exit": 137})`
    """

    verdict: Literal[Verdict.INFRA, Verdict.UNKNOWN]
    cause: Cause
    evidence: Evidence = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        assert self.verdict in (Verdict.INFRA, Verdict.UNKNOWN), self.verdict


Outcome = Graded | Ungraded


# --- tasks --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a sandbox may use. `None` leaves a resource unlimited."""

    cpus: float | None = None
    memory_bytes: int | None = None
    disk_bytes: int | None = None
    pids: int | None = 256
    egress: tuple[str, ...] = ()  # hosts to be reached through the proxy; "*.x.org": below x.org; "*": any public one


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCheck:
    """How to know that an image's service works: `command` exits with 0. Asked often at first, then every `interval_s`.

    Failures in the first `start_period_s` do not count; after `retries` failures in a row it is unhealthy.
    """

    command: str
    interval_s: float = 5.0
    timeout_s: float = 30.0
    start_period_s: float = 0.0
    retries: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSpec:
    """What a task's sandbox is made from.

    `dockerfile` is executed by `sandbox.image`; without one, `docker_image` names a ready-made image; without either,
    it is the plain base image. `context` is the build context.
    """

    dockerfile: Path | None = None
    docker_image: str | None = None
    context: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    workdir: str | None = None  # overrides the Dockerfile's WORKDIR
    user: str | None = None  # overrides the Dockerfile's USER
    build_args: Mapping[str, str] = field(default_factory=dict[str, str])  # values for the Dockerfile's ARGs
    target: str | None = None  # the build stage to stop at; None: the last
    entrypoint: tuple[str, ...] = ()  # overrides ENTRYPOINT and drops CMD, as a compose file may
    command: tuple[str, ...] = ()  # overrides CMD
    health: HealthCheck | None = None  # with one, ENTRYPOINT and CMD are a service that runs in every fork
    build_timeout_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Collect:
    """A command to run in the agent's final state, before the verifier of a separate environment looks at it."""

    command: str
    timeout_s: float = 60.0
    user: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierSpec:
    """How the final state is graded: `tests/test.sh`, run in a fork of that state.

    With an `image` of its own (a separate environment) it runs there instead, and sees of the agent's state only
    `artifacts`, at the same paths.
    """

    tests: Path  # directory mounted read-only at /tests
    timeout_s: float = 600.0
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    user: str | None = None
    owned: tuple[str, ...] = ()  # system paths that the task itself asks to change, such as /usr/local/bin
    egress: tuple[str, ...] = ()
    image: ImageSpec | None = None
    artifacts: tuple[str, ...] = ()
    collect: tuple[Collect, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStep:
    """One step of a task of several: its own instruction and verifier, in the sandbox that the last step left."""

    name: str
    instruction: str
    verifier: VerifierSpec
    agent_timeout_s: float | None = None
    min_reward: float | None = None  # a lower reward ends the task here
    health: HealthCheck | None = None  # asked before the agent begins
    setup: Path | None = None  # directory whose files, and setup.sh if there, are put into the workdir before it begins
    solution: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One problem with its environment and its verifier. Loaded from a Harbor task directory.

    A task of several steps has `steps`; `instruction` and `verifier` are then those of the first.
    """

    id: str
    instruction: str
    root: Path
    image: ImageSpec
    limits: Limits
    verifier: VerifierSpec
    digest: str  # hex sha256 over every file of the directory; caches, audit and replay rely on it
    solution: Path | None = None  # directory with solve.sh
    solution_env: Mapping[str, str] = field(default_factory=dict[str, str])
    agent_timeout_s: float | None = None  # None: the run's own time budget holds
    max_turns: int | None = None  # None: the run's own turn budget holds
    family: str = ""  # tasks of one family share a generator; held-out reports group by it
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    steps: tuple[TaskStep, ...] = ()
    step_reward: Literal["mean", "final"] = "mean"


# --- time ---------------------------------------------------------------------------------------------


class Stage(StrEnum):
    """What a trajectory (or a batch) was waiting for. Each instant of a TTB belongs to exactly one."""

    ADMISSION = "admission"  # waiting for a slot or for permission to start
    SANDBOX_QUEUE = "sandbox_queue"  # waiting for the pool
    SANDBOX_START = "sandbox_start"
    ENGINE_QUEUE = "engine_queue"  # sent, not yet computing; includes transport
    PREFILL = "prefill"
    RECOMPUTE = "recompute"  # prefill of tokens whose cache was lost
    DECODE = "decode"
    TOOL = "tool"  # the model's own command runs
    VERIFIER_QUEUE = "verifier_queue"
    VERIFY = "verify"
    INFRA_RETRY = "infra_retry"  # time spent on an attempt that infrastructure lost
    PUBLICATION_PAUSE = "publication_pause"  # the engine was paused for new weights
    REFILL = "refill"  # replacing a group without gradient, too stale, or short
    ASSEMBLY = "assembly"  # everything else: our own bookkeeping


class DeviceState(StrEnum):
    """What a device (engine replica or trainer rank) did. It is in exactly one state at each instant."""

    PREFILL = "prefill"
    RECOMPUTE = "recompute"
    DECODE = "decode"
    IDLE = "idle"  # as the engine sees it; the ledger splits it into env_wait and no_work
    ENV_WAIT = "env_wait"  # no running request while live trajectories are in a sandbox or verifier
    NO_WORK = "no_work"  # no live trajectory
    PUBLISH_PAUSE = "publish_pause"
    LOADING = "loading"
    DOWN = "down"
    TRAIN = "train"
    BATCH_WAIT = "batch_wait"
    PUBLISH = "publish"
    EVALUATE = "evaluate"
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """`owner` (a trajectory or device id) was in `stage` during [start, end), in seconds on `clock.now()`."""

    owner: str
    stage: Stage | DeviceState
    start: float
    end: float

    @property
    def duration_s(self) -> float:
        return self.end - self.start


# --- launches -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """An order to run one attempt: sibling `sibling` of a group, for the `attempt`-th time.

    Example: `Launch(id="g000012.3", group_id="g000012", task=task, sibling=3, attempt=0)`
    """

    id: str
    group_id: str
    task: Task
    sibling: int
    attempt: int = 0


# --- trajectories -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """An append-only token sequence, exactly as the engine saw and sampled it.

    tokens_T    ids
    sampled_T   True where an engine sampled the token; only these are trained
    logprobs_T  behaviour log-probability after temperature; 0 where not sampled
    versions_T  policy version that sampled it; UNSAMPLED elsewhere
    """

    tokens_T: Ints
    sampled_T: Bools
    logprobs_T: Floats
    versions_T: Ints

    def __post_init__(self) -> None:
        length = len(self.tokens_T)
        assert len(self.sampled_T) == len(self.logprobs_T) == len(self.versions_T) == length
        assert bool(np.all((self.versions_T >= 0) == self.sampled_T)), "a version for each sampled token"

    def __len__(self) -> int:
        return len(self.tokens_T)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One exchange, kept for reading and replay. `command` is None when the reply held none."""

    index: int
    reply: str
    command: str | None
    observation: str
    exit_code: int | None = None
    commands: tuple[str, ...] = ()  # as they were run, one after the other; `command` shows them joined
    observations: tuple[str, ...] = ()  # what the model was shown of each
    sampled_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    duration_s: float = 0.0  # of the command


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One attempt at a task, ended.

    Segments are trained; turns are for people and replay; spans say where the time went.
    `snapshots` names the frozen states it went through: the first it was forked from, the last it was graded on.
    """

    id: str
    group_id: str
    task_id: str
    attempt: int  # 0 for the first launch of this sibling; each infrastructure refill adds one
    segments: tuple[Segment, ...]
    turns: tuple[Turn, ...]
    spans: tuple[Span, ...]
    outcome: Outcome
    started: float
    ended: float
    snapshots: tuple[str, ...] = ()

    @property
    def sampled_tokens(self) -> int:
        return int(sum(int(s.sampled_T.sum()) for s in self.segments))

    @property
    def oldest_version(self) -> int | None:
        """The oldest policy version among the sampled tokens; None if nothing was sampled."""
        ages = [int(s.versions_T[s.sampled_T].min()) for s in self.segments if s.sampled_T.any()]
        return min(ages) if ages else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyGroup:
    """A complete group whose members were all graded by fact."""

    id: str
    task_id: str
    submission: int  # order of submission in the run; batch policies reason about it
    members: tuple[Trajectory, ...]
    ready_at: float

    def __post_init__(self) -> None:
        assert self.members, "a ready group has members"
        assert all(isinstance(m.outcome, Graded) for m in self.members), "only graded members"

    @property
    def rewards(self) -> tuple[float, ...]:
        return tuple(m.outcome.reward for m in self.members if isinstance(m.outcome, Graded))

    @property
    def has_gradient(self) -> bool:
        rewards = self.rewards
        return max(rewards) - min(rewards) > 1e-6

    @property
    def oldest_version(self) -> int:
        return min(v for m in self.members if (v := m.oldest_version) is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What the trainer takes: complete groups, graded, with gradient."""

    step: int
    groups: tuple[ReadyGroup, ...]
    opened_at: float
    ready_at: float

    @property
    def ttb_s(self) -> float:
        """Time to trainable batch, in seconds."""
        return self.ready_at - self.opened_at


# --- sampling and engines -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The policy is softmax(logits / temperature): engine and trainer use the same one."""

    temperature: float = 1.0
    max_tokens: int = 256
    stop_tokens: tuple[int, ...] = ()
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Who is asking. Engines and routers keep a session where its cache is."""

    id: str
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What one request to an engine returned.

    tokens_T, logprobs_T (after temperature), versions_T: one entry per sampled token, the stop token included.
    The `*_s` fields split the time the request spent inside the engine; they need not cover transport.
    """

    tokens_T: Ints
    logprobs_T: Floats
    versions_T: Ints
    finish: Literal["stop", "length", "abort"]
    cached_tokens: int = 0
    queue_s: float = 0.0
    prefill_s: float = 0.0
    recompute_s: float = 0.0
    decode_s: float = 0.0
    paused_s: float = 0.0
    replica: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A published policy: a counter and the digest of its weights."""

    number: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """New weights on their way to the engines. `location` is a path or URL that the transport understands."""

    version: Version
    transport: Literal["memory", "direct", "checkpoint"]
    location: str
    size_bytes: int
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationRecord:
    """How a publication reached one replica. `latency_s` counts from the end of the trainer's step."""

    version: Version
    replica: str
    export_s: float
    stage_s: float
    commit_s: float
    pause_s: float
    latency_s: float
    size_bytes: int
    digest_equal: bool
    canary_difference: float | None  # mean |Δ log-probability| engine vs trainer on fixed tokens; None: not taken
    held: int = 0  # requests held in flight
    aborted: int = 0
    finished: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Pass rate on held-out tasks at one pinned version, with everything that made the number."""

    step: int
    version: Version
    tasks: int
    graded: int
    passed: int
    pass_rate: float
    low: float  # 95 % Wilson interval
    high: float
    by_family: Mapping[str, tuple[int, int]]  # family -> (passed, graded)
    ungraded: Mapping[str, int]  # cause -> count; excluded from the rate
    fingerprint: Mapping[str, Any]  # model digest, engine, version, dtype, sampling, task set digest
    started: float
    ended: float
