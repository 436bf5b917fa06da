"""Tasks: what an agent is given, what its sandbox is made from, how its final state is graded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from muster.types.trajectories import Kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Resource limits of a sandbox. `None` leaves a resource unlimited."""

    cpus: float | None = None
    memory_bytes: int | None = None
    disk_bytes: int | None = None
    pids: int | None = 256
    egress: tuple[str, ...] = ()  # hosts to be reached through the proxy; "*.x.org": below x.org; "*": any public one


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCheck:
    """Health check of an image's service: `command` exits with 0. Asked often at first, then every `interval_s`.

    Failures in the first `start_period_s` do not count; after `retries` failures in a row it is unhealthy.
    """

    command: str
    interval_s: float = 5.0
    timeout_s: float = 30.0
    start_period_s: float = 0.0
    retries: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSpec:
    """Specification of the image that a task's sandbox is made from.

    `dockerfile` is built by the sandbox backend; without one, `docker_image` names a ready-made image; without either,
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
    """Specification of how the final state is graded: `tests/test.sh`, run in a fork of that state.

    With an `image` of its own (a separate environment) it runs there instead, and sees of the agent's state only
    `artifacts`, at the same paths.
    """

    tests: Path  # directory mounted read-only at /tests
    shared_tests: Path | None = None  # of all steps together: at /tests too, where `tests` has no file of that name
    tests_in_image: bool = False  # the separate image brings its own /tests; nothing is mounted there
    timeout_s: float = 600.0
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    user: str | None = None
    owned: tuple[str, ...] = ()  # system paths that the task itself asks to change, such as /usr/local/bin
    egress: tuple[str, ...] = ()
    image: ImageSpec | None = None
    limits: Limits | None = None  # of the separate environment; None: the task's
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
    min_criteria: Mapping[str, float] = field(default_factory=dict[str, float])  # the same for members of reward.json
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """An order to run one attempt: sibling `sibling` of a group, for the `attempt`-th time.

    kept: where to go on, if an earlier attempt of this sibling was lost; None: from the beginning.

    Example: `Launch(id="g000012.3", group_id="g000012", task=task, sibling=3, attempt=0)`
    """

    id: str
    group_id: str
    task: Task
    sibling: int
    attempt: int = 0
    kept: Kept | None = field(default=None, compare=False)
