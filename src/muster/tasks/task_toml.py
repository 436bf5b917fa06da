"""The `task.toml` of a Harbor task: what Muster reads of it, and what it refuses.

Law: unknown keys are accepted, known keys are strictly typed, and a key that would change what the task means
but that Muster cannot honour yet is refused here, by name, instead of being ignored.

Source: the Harbor task format, schema_version 1.0 to 1.4, single-step tasks.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from muster.errors import TaskError

MEBIBYTE: Final = 1024 * 1024
"""Harbor's `*_mb` count these, as container runtimes do."""

ROOT_USERS: Final = (None, "root", 0, "0", "root:root", "0:0")


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, allow_inf_nan=False)


class AgentTable(_Table):
    timeout_sec: float | None = Field(default=None, gt=0, description="Wall time of the agent, in seconds")
    user: str | int | None = Field(default=None, description="Only root is supported")
    network_mode: str | None = Field(default=None, description="public, no-network or allowlist")


class VerifierTable(_Table):
    timeout_sec: float = Field(default=600.0, gt=0, description="Wall time of tests/test.sh, in seconds")
    env: dict[str, str] = Field(default_factory=dict[str, str], description="Environment of tests/test.sh")
    user: str | int | None = Field(default=None, description="Only root is supported")
    environment_mode: str = Field(default="shared", description="Only shared is supported")
    collect: list[Any] = Field(default_factory=list[Any], description="Not supported yet")
    network_mode: str | None = Field(default=None, description="public, no-network or allowlist")


class EnvironmentTable(_Table):
    build_timeout_sec: float = Field(default=600.0, gt=0, description="Wall time of the image build, in seconds")
    docker_image: str | None = Field(default=None, description="Ready-made image; needs a Dockerfile beside it")
    os: str = Field(default="linux", description="Only linux is supported")
    cpus: float | None = Field(default=None, gt=0, description="CPU cores")
    memory_mb: int | None = Field(default=None, gt=0, description="Memory, in MiB")
    storage_mb: int | None = Field(default=None, gt=0, description="Writable disk, in MiB")
    memory: str | None = Field(default=None, description="Deprecated: memory_mb as text, such as 2G")
    storage: str | None = Field(default=None, description="Deprecated: storage_mb as text, such as 10G")
    gpus: int | None = Field(default=None, ge=0, description="Only 0 is supported")
    env: dict[str, str] = Field(default_factory=dict[str, str], description="Environment of the image")
    workdir: str | None = Field(default=None, description="Overrides the WORKDIR of the Dockerfile")
    network_mode: str | None = Field(default=None, description="public, no-network or allowlist")
    allow_internet: bool | None = Field(default=None, description="Deprecated: network_mode as a switch")
    healthcheck: dict[str, Any] | None = Field(default=None, description="Not supported yet")
    mcp_servers: list[Any] = Field(default_factory=list[Any], description="Not supported yet")


class TaskTable(_Table):
    name: str | None = Field(default=None, description="org/name in a registry; Muster goes by the directory")
    keywords: list[str] = Field(default_factory=list[str], description="Become tags")


class TaskToml(_Table):
    """One file, checked. `metadata` is free-form; Muster reads `family`, `max_turns` and `tags` of it."""

    task: TaskTable = TaskTable()
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])
    agent: AgentTable = AgentTable()
    verifier: VerifierTable = VerifierTable()
    environment: EnvironmentTable = EnvironmentTable()
    steps: list[Any] = Field(default_factory=list[Any], description="Not supported yet")

    @property
    def memory_bytes(self) -> int | None:
        return _bytes("memory", self.environment.memory, self.environment.memory_mb)

    @property
    def disk_bytes(self) -> int | None:
        return _bytes("storage", self.environment.storage, self.environment.storage_mb)

    @property
    def network_mode(self) -> str | None:
        """What the task asks for; None when it says nothing."""
        switch = self.environment.allow_internet
        asked = {None: None, True: "public", False: "no-network"}[switch]
        return self.environment.network_mode or asked


def read_toml(path: Path) -> TaskToml:
    """Read and check one file. Raises `TaskError`: file, line or key, what was expected, what was found."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise TaskError(_toml_message(path, str(error))) from None
    except UnicodeDecodeError as error:
        raise TaskError(f"{path}: not UTF-8 at byte {error.start}") from None
    try:
        toml = TaskToml.model_validate(raw)
    except ValidationError as error:
        raise TaskError("; ".join(_validation_messages(path, error))) from None
    for key, problem in _refused(toml):
        raise TaskError(f"{path}: {key}: {problem}")
    return toml


def _refused(toml: TaskToml) -> Iterator[tuple[str, str]]:
    """Keys that are well formed but cannot be honoured, with what to do."""
    environment, verifier = toml.environment, toml.verifier
    later = "not supported yet"
    if toml.steps:
        yield "steps", f"tasks of several steps are {later}; make one task of each step"
    if environment.os.lower() != "linux":
        yield "environment.os", f"{environment.os!r} is {later}; only 'linux' is"
    if environment.gpus:
        yield "environment.gpus", f"{environment.gpus} GPUs inside a sandbox are {later}; write 0"
    if environment.healthcheck:
        yield "environment.healthcheck", f"services that need a health check are {later}"
    if environment.mcp_servers:
        yield "environment.mcp_servers", f"MCP servers are {later}"
    if verifier.environment_mode != "shared":
        yield "verifier.environment_mode", f"{verifier.environment_mode!r} is {later}; only 'shared' is"
    if verifier.collect:
        yield "verifier.collect", f"collecting from services is {later}"
    for table, user in (("agent", toml.agent.user), ("verifier", verifier.user)):
        if user not in ROOT_USERS:
            yield f"{table}.user", f"{user!r} is {later}; only 'root' is"
    for key, text, number in (
        ("memory", environment.memory, environment.memory_mb),
        ("storage", environment.storage, environment.storage_mb),
    ):
        yield from _size_problems(key, text, number)
    if environment.allow_internet is not None and environment.network_mode is not None:
        public = environment.network_mode == "public"
        if public != environment.allow_internet:
            yield "environment.allow_internet", f"contradicts network_mode = {environment.network_mode!r}"
    yield from _metadata_problems(toml.metadata)


def _metadata_problems(metadata: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    family, max_turns = metadata.get("family", ""), metadata.get("max_turns")
    tags = metadata.get("tags", [])
    if not isinstance(family, str):
        yield "metadata.family", f"expected a string, found {family!r}"
    if max_turns is not None and (type(max_turns) is not int or max_turns < 1):
        yield "metadata.max_turns", f"expected a whole number of 1 or more, found {max_turns!r}"
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in cast("list[object]", tags)):
        yield "metadata.tags", f"expected a list of strings, found {tags!r}"


_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMG])i?B?", re.IGNORECASE)
_UNIT_BYTES: Final = {"K": 1024, "M": MEBIBYTE, "G": 1024 * MEBIBYTE}


def _size_problems(key: str, text: str | None, mebibytes: int | None) -> Iterator[tuple[str, str]]:
    if text is None:
        return
    if not _SIZE.fullmatch(text.strip()):
        yield f"environment.{key}", f"expected a size such as '2G', '512M' or '1024K', found {text!r}"
    elif mebibytes is not None and _bytes(key, text, None) != mebibytes * MEBIBYTE:
        yield f"environment.{key}", f"{text!r} contradicts {key}_mb = {mebibytes}; keep {key}_mb"


def _bytes(key: str, text: str | None, mebibytes: int | None) -> int | None:
    if mebibytes is not None:
        return mebibytes * MEBIBYTE
    if text is None:
        return None
    match = _SIZE.fullmatch(text.strip())
    assert match, f"{key} was checked by read_toml"
    return int(float(match[1]) * _UNIT_BYTES[match[2].upper()])


def _toml_message(path: Path, message: str) -> str:
    """tomllib writes `... (at line 3, column 7)`: put the line where editors find it."""
    match = re.search(r" \(at line (\d+), column (\d+)\)$", message)
    if not match:
        return f"{path}: not TOML: {message}"
    return f"{path}:{match[1]}:{match[2]}: not TOML: {message[: match.start()]}"


def _validation_messages(path: Path, error: ValidationError) -> Iterator[str]:
    for problem in error.errors(include_url=False):
        key = ".".join(str(part) for part in problem["loc"])
        expected = problem["msg"].removeprefix("Input should be ")
        yield f"{path}: {key}: expected {expected}, found {problem['input']!r}"
