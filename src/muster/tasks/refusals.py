"""Refusals of a well-formed task.toml: contradictions, and what cannot be honoured. Law: pure, and each says the fix.

Ignoring such a key would change what the task means; a task that means something else trains the wrong thing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from muster.tasks.network import host_problem
from muster.tasks.task_toml import (
    ArtifactTable,
    EnvironmentTable,
    NetworkTable,
    StepTable,
    TaskToml,
    VerifierTable,
    size_bytes,
)

Problem = tuple[str, str]
"""The key, and what is wrong with it."""

_USER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?::[A-Za-z0-9_][A-Za-z0-9_.-]*)?")
_NOT_IN_STEP_NAMES: Final = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f]')
_LATER: Final = "not supported yet"


def problems(toml: TaskToml) -> Iterator[Problem]:
    """Every problem of one file, in the order of its tables."""
    yield from _metadata(toml.metadata)
    yield from _network("agent", toml.agent)
    yield from _user("agent", toml.agent.user)
    modes = [_mode(step.verifier, toml.verifier) for step in toml.steps] or [toml.verifier.mode]
    separate = "separate" in modes
    yield from _verifier("verifier", toml.verifier, separate=separate)
    yield from _environment("environment", toml.environment)
    yield from _artifacts("artifacts", toml.artifacts, separate=separate)
    names = [step.name.casefold() for step in toml.steps]
    for index, step in enumerate(toml.steps):
        key = f"steps.{index}"
        if step.name.casefold() in names[:index]:
            yield f"{key}.name", f"{step.name!r} is there twice; give each step a name of its own"
        yield from _step(key, step, toml)


def _mode(step: VerifierTable, task: VerifierTable) -> str:
    """Mode that a step is verified in: what it says itself, else what the task says."""
    return step.mode if step.environment_mode or step.environment else task.mode


def _step(key: str, step: StepTable, toml: TaskToml) -> Iterator[Problem]:
    if step.name in (".", "..") or step.name.endswith((".", " ")) or _NOT_IN_STEP_NAMES.search(step.name):
        yield f"{key}.name", f"{step.name!r} is no plain directory name"
    if step.agent.user not in (None, toml.agent.user):
        yield f"{key}.agent.user", f"a user for this step alone is {_LATER}; write agent.user for all steps"
    if step.agent.network_mode is not None and _policy(step.agent) != _policy(toml.agent, toml.environment):
        yield f"{key}.agent.network_mode", f"a network for this step alone is {_LATER}; write it under [agent]"
    yield from _network(f"{key}.agent", step.agent)
    separate = _mode(step.verifier, toml.verifier) == "separate"
    yield from _verifier(f"{key}.verifier", step.verifier, separate=separate)
    yield from _artifacts(f"{key}.artifacts", step.artifacts, separate=separate)


def _verifier(key: str, table: VerifierTable, *, separate: bool) -> Iterator[Problem]:
    if table.environment_mode == "shared" and table.environment is not None:
        yield f"{key}.environment_mode", f"'shared' contradicts [{key}.environment]; keep one of them"
    if table.collect and not separate:
        yield f"{key}.collect", "is for environment_mode = 'separate'; here, let tests/test.sh run the commands"
    for index, it in enumerate(table.collect):
        if it.service != "main":
            yield f"{key}.collect.{index}.service", f"services beside the agent's ({it.service!r}) are {_LATER}"
        yield from _user(f"{key}.collect.{index}", it.user)
    yield from _user(key, table.user)
    yield from _network(key, table)
    if table.environment is not None:
        yield from _environment(f"{key}.environment", table.environment)


def _environment(key: str, table: EnvironmentTable) -> Iterator[Problem]:
    if table.os.lower() != "linux":
        yield f"{key}.os", f"{table.os!r} is {_LATER}; only 'linux' is"
    if table.gpus:
        yield f"{key}.gpus", f"{table.gpus} GPUs inside a sandbox are {_LATER}; write 0"
    if table.tpu is not None:
        yield f"{key}.tpu", f"TPUs inside a sandbox are {_LATER}; remove it"
    if table.mcp_servers:
        yield f"{key}.mcp_servers", f"MCP servers are {_LATER}; remove them"
    if table.workdir is not None and not table.workdir.startswith("/"):
        yield f"{key}.workdir", f"expected an absolute path, found {table.workdir!r}"
    yield from _size(f"{key}.memory", table.memory, table.memory_mb)
    yield from _size(f"{key}.storage", table.storage, table.storage_mb)
    if (switch := table.allow_internet) is not None and table.network_mode not in (None, _asked_by(switch)):
        yield f"{key}.allow_internet", f"contradicts network_mode = {table.network_mode!r}; keep network_mode"
    yield from _network(key, table)


def _asked_by(allow_internet: bool) -> str:
    return "public" if allow_internet else "no-network"


def _network(key: str, table: NetworkTable) -> Iterator[Problem]:
    if table.allowed_hosts is None:
        return
    if table.network_mode != "allowlist":
        yield f"{key}.allowed_hosts", "is for network_mode = 'allowlist' alone; write that, or remove it"
    for host in table.allowed_hosts:
        if problem := host_problem(host):
            yield f"{key}.allowed_hosts", problem


def _policy(*tables: NetworkTable) -> tuple[str | None, tuple[str, ...]]:
    """The first of `tables` that says anything."""
    for table in tables:
        mode = table.asked_mode if isinstance(table, EnvironmentTable) else table.network_mode
        if mode is not None:
            return mode, tuple(table.allowed_hosts or ())
    return None, ()


def _size(key: str, text: str | None, mebibytes: int | None) -> Iterator[Problem]:
    if text is None:
        return
    size = size_bytes(text)
    if size is None:
        yield key, f"expected a size such as '2G', '512M' or '1024K', found {text!r}"
    elif mebibytes is not None and size != mebibytes * 1024 * 1024:
        name = key.rpartition(".")[2]
        yield key, f"{text!r} contradicts {name}_mb = {mebibytes}; keep {name}_mb"


def _user(key: str, user: str | int | None) -> Iterator[Problem]:
    if user is not None and not _USER.fullmatch(str(user)):
        yield f"{key}.user", f"expected a user's name or number, found {user!r}"


def _artifacts(key: str, tables: list[ArtifactTable], *, separate: bool) -> Iterator[Problem]:
    """In the shared environment, artifacts are only copies for people: there all of them are accepted."""
    for index, it in enumerate(tables if separate else ()):
        here = f"{key}.{index}"
        if it.service not in (None, "main"):
            yield f"{here}.service", f"services beside the agent's ({it.service!r}) are {_LATER}"
        if it.exclude:
            yield f"{here}.exclude", f"leaving out parts of an artifact is {_LATER}; name the parts to hand over"
        if not it.source.startswith("/") or ".." in it.source.split("/"):
            yield f"{here}.source", f"expected an absolute path without '..', found {it.source!r}"


def _metadata(metadata: Mapping[str, Any]) -> Iterator[Problem]:
    family, max_turns = metadata.get("family", ""), metadata.get("max_turns")
    if not isinstance(family, str):
        yield "metadata.family", f"expected a string, found {family!r}"
    if max_turns is not None and (type(max_turns) is not int or max_turns < 1):
        yield "metadata.max_turns", f"expected a whole number of 1 or more, found {max_turns!r}"
    if not _strings(metadata.get("tags", [])):
        yield "metadata.tags", f"expected a list of strings, found {metadata['tags']!r}"
    owned = metadata.get("owned_paths", [])
    if not _strings(owned):
        yield "metadata.owned_paths", f"expected a list of strings, found {owned!r}"
    elif relative := [path for path in owned if not path.startswith("/") or path.rstrip("/") == ""]:
        yield "metadata.owned_paths", f"expected absolute paths below /, found {relative[0]!r}"


def _strings(found: object) -> bool:
    return isinstance(found, list) and all(isinstance(item, str) for item in cast("list[object]", found))
