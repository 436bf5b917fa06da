"""The `task.toml` of a Harbor task: its tables, checked.

Law: unknown keys are accepted and known keys are strictly typed. What is well formed but cannot be honoured is
refused by `refusals`, by name, instead of being ignored.

    read_toml(path) ─tomllib─► tables ─refusals.problems─► TaskToml

Source: the Harbor task format, schema_version 1.0 to 1.4.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from muster.errors import TaskError
from muster.types import HealthCheck

MEBIBYTE: Final = 1024 * 1024
"""Harbor's `*_mb` count these, as container runtimes do."""

NetworkMode = Literal["public", "no-network", "allowlist"]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, allow_inf_nan=False)


class NetworkTable(_Table):
    """Network access of a phase. None: the phase says nothing."""

    network_mode: NetworkMode | None = Field(default=None, description="public, no-network or allowlist")
    allowed_hosts: list[str] | None = Field(default=None, description="Host names, *.names or IP addresses")


class HealthTable(_Table):
    command: str = Field(description="Shell command; healthy when it exits with 0")
    interval_sec: float = Field(default=5.0, ge=0, description="Between checks")
    timeout_sec: float = Field(default=30.0, gt=0, description="Wall time of one check")
    start_period_sec: float = Field(default=0.0, ge=0, description="Failures before this do not count")
    retries: int = Field(default=3, ge=1, description="Failures in a row that make it unhealthy")

    def health(self) -> HealthCheck:
        return HealthCheck(
            command=self.command,
            interval_s=self.interval_sec,
            timeout_s=self.timeout_sec,
            start_period_s=self.start_period_sec,
            retries=self.retries,
        )


class AgentTable(NetworkTable):
    timeout_sec: float | None = Field(default=None, gt=0, description="Wall time of the agent, in seconds")
    user: str | int | None = Field(default=None, description="User of the agent; none: the image's")


class EnvironmentTable(NetworkTable):
    build_timeout_sec: float = Field(default=600.0, gt=0, description="Wall time of the image build, in seconds")
    docker_image: str | None = Field(default=None, description="Ready-made image, where there is no Dockerfile")
    os: str = Field(default="linux", description="Only linux is supported")
    cpus: float | None = Field(default=None, gt=0, description="CPU cores")
    memory_mb: int | None = Field(default=None, gt=0, description="Memory, in MiB")
    storage_mb: int | None = Field(default=None, gt=0, description="Writable disk, in MiB")
    memory: str | None = Field(default=None, description="Deprecated: memory_mb as text, such as 2G")
    storage: str | None = Field(default=None, description="Deprecated: storage_mb as text, such as 10G")
    gpus: int | None = Field(default=None, ge=0, description="Only 0 is supported")
    tpu: Any = Field(default=None, description="Not supported")
    env: dict[str, str] = Field(default_factory=dict[str, str], description="Environment of the image")
    workdir: str | None = Field(default=None, description="Overrides the WORKDIR of the Dockerfile")
    allow_internet: bool | None = Field(default=None, description="Deprecated: network_mode as a switch")
    healthcheck: HealthTable | None = Field(default=None, description="How to know that its service works")
    mcp_servers: list[Any] = Field(default_factory=list[Any], description="Not supported")
    skills_dir: str | None = Field(default=None, description="Accepted; the agent has no use for it")

    @property
    def memory_bytes(self) -> int | None:
        return _bytes(self.memory, self.memory_mb)

    @property
    def disk_bytes(self) -> int | None:
        return _bytes(self.storage, self.storage_mb)

    @property
    def asked_mode(self) -> NetworkMode | None:
        """The network that the table asks for, by the key of today or of before; None when it says nothing."""
        if self.network_mode is not None or self.allow_internet is None:
            return self.network_mode
        return "public" if self.allow_internet else "no-network"


class CollectTable(_Table):
    command: str = Field(description="Shell command, run in the final state")
    service: str = Field(default="main", description="Only main is supported")
    timeout_sec: float = Field(default=60.0, gt=0, description="Wall time, in seconds")
    user: str | int | None = Field(default=None, description="None: root")


class ArtifactTable(_Table):
    source: str = Field(description="Path in the agent's sandbox")
    exclude: list[str] = Field(default_factory=list[str], description="Not supported for a separate verifier")
    service: str | None = Field(default=None, description="Only main is supported")


class VerifierTable(NetworkTable):
    timeout_sec: float = Field(default=600.0, gt=0, description="Wall time of tests/test.sh, in seconds")
    env: dict[str, str] = Field(default_factory=dict[str, str], description="Environment of tests/test.sh")
    user: str | int | None = Field(default=None, description="User of tests/test.sh")
    environment_mode: Literal["shared", "separate"] | None = Field(
        default=None, description="None: separate where there is an environment table, else shared"
    )
    environment: EnvironmentTable | None = Field(default=None, description="Environment of a separate verifier")
    collect: list[CollectTable] = Field(
        default_factory=list[CollectTable], description="Run in the final state before its artifacts are taken"
    )

    @property
    def mode(self) -> Literal["shared", "separate"]:
        return self.environment_mode or ("shared" if self.environment is None else "separate")


class _Artifacts(_Table):
    artifacts: list[ArtifactTable] = Field(default_factory=list[ArtifactTable])

    @field_validator("artifacts", mode="before")
    @classmethod
    def _paths_are_tables(cls, found: object) -> object:
        if not isinstance(found, list):
            return found
        return [{"source": item} if isinstance(item, str) else item for item in cast("list[object]", found)]


class StepTable(_Artifacts):
    name: str = Field(min_length=1, description="Its directory under steps/")
    agent: AgentTable = AgentTable()
    verifier: VerifierTable = VerifierTable()
    min_reward: dict[str, float] = Field(
        default_factory=dict[str, float],
        description="Less ends the task here: a number, or one per criterion",
    )
    healthcheck: HealthTable | None = Field(default=None, description="Asked after its set-up")

    @field_validator("min_reward", mode="before")
    @classmethod
    def _a_number_is_about_the_reward(cls, found: object) -> object:
        return {"reward": found} if isinstance(found, int | float) and not isinstance(found, bool) else found


class TaskTable(_Table):
    name: str | None = Field(default=None, description="org/name in a registry; Muster goes by the directory")
    keywords: list[str] = Field(default_factory=list[str], description="Become tags")


class SolutionTable(_Table):
    env: dict[str, str] = Field(default_factory=dict[str, str], description="Environment of solution/solve.sh")


class TaskToml(_Artifacts):
    """One file, checked. Of the free-form `metadata` Muster reads `family`, `max_turns`, `tags` and `owned_paths`."""

    task: TaskTable = TaskTable()
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])
    agent: AgentTable = AgentTable()
    verifier: VerifierTable = VerifierTable()
    environment: EnvironmentTable = EnvironmentTable()
    solution: SolutionTable = SolutionTable()
    steps: list[StepTable] = Field(default_factory=list[StepTable])
    multi_step_reward_strategy: Literal["mean", "final"] | None = None


def read_toml(path: Path) -> TaskToml:
    """Read and type-check one file. Raises `TaskError`: file, line or key, what was expected, what was found."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise TaskError(_toml_message(path, str(error))) from None
    except UnicodeDecodeError as error:
        raise TaskError(f"{path}: not UTF-8 at byte {error.start}") from None
    try:
        return TaskToml.model_validate(raw)
    except ValidationError as error:
        raise TaskError("; ".join(validation_messages(path, error))) from None


SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMG])i?B?", re.IGNORECASE)
"""A deprecated size, such as 2G."""
_UNIT_BYTES: Final = {"K": 1024, "M": MEBIBYTE, "G": 1024 * MEBIBYTE}


def size_bytes(text: str) -> int | None:
    """None for a text that is no size."""
    match = SIZE.fullmatch(text.strip())
    return int(float(match[1]) * _UNIT_BYTES[match[2].upper()]) if match else None


def _bytes(text: str | None, mebibytes: int | None) -> int | None:
    if mebibytes is not None:
        return mebibytes * MEBIBYTE
    return None if text is None else size_bytes(text)


def _toml_message(path: Path, message: str) -> str:
    """tomllib writes `... (at line 3, column 7)`: put the line where editors find it."""
    match = re.search(r" \(at line (\d+), column (\d+)\)$", message)
    if not match:
        return f"{path}: not TOML: {message}"
    return f"{path}:{match[1]}:{match[2]}: not TOML: {message[: match.start()]}"


def validation_messages(path: Path, error: ValidationError) -> Iterator[str]:
    """One line for each problem: file, key, what was expected, what was found."""
    for problem in error.errors(include_url=False):
        key = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "missing":
            yield f"{path}: {key}: missing"
            continue
        expected = problem["msg"].removeprefix("Input should be ")
        yield f"{path}: {key}: expected {expected}, found {problem['input']!r}"
