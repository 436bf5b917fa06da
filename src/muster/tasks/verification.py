"""Verification: how a task, or one step of it, is graded.

    shared     tests/test.sh in a fork of the final state
    separate   in an image of its own: that of its table, else tests/Dockerfile, else a fresh copy of environment/

Law: what a step leaves out it takes from the task, but for the time-out, whose default is its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from muster.tasks import environment
from muster.tasks.network import egress
from muster.tasks.source import TaskDirectory
from muster.tasks.task_toml import ArtifactTable, EnvironmentTable, StepTable, VerifierTable
from muster.types import Collect, ImageSpec, Limits, VerifierSpec

TASK_TESTS: Final = "tests"
PUBLISHED: Final = "/logs/artifacts"
"""What an agent leaves here is handed over without being named."""


@dataclass(frozen=True, slots=True)
class _Level:
    """A verifier table with the folder of its tests; `key` names it in errors."""

    table: VerifierTable
    tests: str
    key: str


def of_task(source: TaskDirectory) -> VerifierSpec:
    return _spec(source, [_Level(source.toml.verifier, TASK_TESTS, "verifier")], source.toml.artifacts)


def of_step(source: TaskDirectory, index: int, step: StepTable) -> VerifierSpec:
    levels = [
        _Level(step.verifier, f"steps/{step.name}/tests", f"steps.{index}.verifier"),
        _Level(source.toml.verifier, TASK_TESTS, "verifier"),
    ]
    return _spec(source, levels, [*source.toml.artifacts, *step.artifacts])


def _spec(source: TaskDirectory, levels: Sequence[_Level], artifacts: Sequence[ArtifactTable]) -> VerifierSpec:
    """`levels`: the nearest first."""
    user = next((level.table.user for level in levels if level.table.user is not None), None)
    own = _separate(source, levels)
    tests, shared = _tests(source, levels, needed=own is None or not own.brings_tests)
    return VerifierSpec(
        tests=tests,
        shared_tests=shared,
        tests_in_image=own is not None and own.brings_tests,
        timeout_s=levels[0].table.timeout_sec,
        env=_env(source, levels),
        user=None if user is None else str(user),
        owned=tuple(source.toml.metadata.get("owned_paths", ())),
        egress=egress(*(level.table for level in levels), own.table if own else source.toml.environment),
        image=own.image if own else None,
        limits=own.limits if own else None,
        artifacts=_handed_over(artifacts) if own else (),
        collect=tuple(
            Collect(command=it.command, timeout_s=it.timeout_sec, user=None if it.user is None else str(it.user))
            for level in reversed(levels)
            for it in level.table.collect
        ),
    )


def _env(source: TaskDirectory, levels: Sequence[_Level]) -> Mapping[str, str]:
    level = next((level for level in levels if level.table.env), levels[-1])
    return source.resolve(level.table.env, f"{level.key}.env")


def _tests(source: TaskDirectory, levels: Sequence[_Level], *, needed: bool) -> tuple[Path, Path | None]:
    """The folder for /tests, and one that lies below it: the step's own, over what the steps share."""
    folders = [level.tests for level in levels]
    scripts = [folder for folder in folders if source.has(f"{folder}/test.sh")]
    if not needed:
        return source.root / (scripts or folders)[0], None
    source.file(f"{(scripts or folders)[0]}/test.sh")
    present = [source.directory(folder) for folder in folders if source.has(folder)]
    return present[0], present[1] if len(present) > 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Own:
    """An environment of the verifier's own."""

    image: ImageSpec
    table: EnvironmentTable
    limits: Limits | None
    brings_tests: bool


def _separate(source: TaskDirectory, levels: Sequence[_Level]) -> _Own | None:
    """None where the verifier runs in the agent's final state."""
    said = [level for level in levels if level.table.environment_mode or level.table.environment]
    if not said or said[0].table.mode == "shared":
        return None
    defined = next((level for level in levels if level.table.environment is not None), None)
    top = source.toml.environment
    table = (defined.table.environment if defined else None) or top
    key = f"{defined.key}.environment" if defined else "environment"
    limits = environment.limits(table) if defined else None
    for level in levels:
        ready = level.table.environment.docker_image if level.table.environment else None
        if ready or environment.defines_image(source, level.tests):
            chosen = table.model_copy(update={"docker_image": ready})
            spec = environment.image(source, level.tests, chosen, key)
            return _Own(image=spec, table=table, limits=limits, brings_tests=True)
    copy = table.model_copy(update={"docker_image": top.docker_image})
    spec = environment.image(source, "environment", copy, key)
    return _Own(image=spec, table=table, limits=limits, brings_tests=False)


def _handed_over(artifacts: Sequence[ArtifactTable]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([PUBLISHED, *(it.source.rstrip("/") for it in artifacts)]))
