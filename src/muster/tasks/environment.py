"""The image and the limits of a sandbox, from an environment table and the folder that goes with it.

<folder>/docker-compose.yaml ─read_compose─┐
<folder>/Dockerfile ───────────────────────┼─► ImageSpec      the table's own keys win
[environment] ─────────────────────────────┘
"""

from __future__ import annotations

from pathlib import Path

from muster.tasks import compose
from muster.tasks.compose import ComposeImage
from muster.tasks.source import TaskDirectory, regular
from muster.tasks.task_toml import EnvironmentTable
from muster.types import ImageSpec, Limits


def defines_image(source: TaskDirectory, folder: str) -> bool:
    """Whether the folder itself says how to make an image."""
    return any(source.has(f"{folder}/{name}") for name in ("Dockerfile", *compose.NAMES))


def image(
    source: TaskDirectory, folder: str, table: EnvironmentTable, key: str, *, user: str | int | None = None
) -> ImageSpec:
    """Raises `TaskError` when neither the folder nor the table names an image."""
    found = _compose(source, folder)
    dockerfile, ready = _origin(source, folder, table, found)
    spec = ImageSpec(
        dockerfile=dockerfile,
        docker_image=ready,
        context=found.context if found else source.root / folder,
        build_args=found.build_args if found else {},
        target=found.target if found else None,
        env={**(found.env if found else {}), **source.resolve(table.env, f"{key}.env")},
        workdir=table.workdir or (found.workdir if found else None),
        user=str(user) if user is not None else (found.user if found else None),
        entrypoint=found.entrypoint if found else (),
        command=found.command if found else (),
        health=table.healthcheck.health() if table.healthcheck else (found.health if found else None),
        build_timeout_s=table.build_timeout_sec,
    )
    if found and spec.health is None and not found.idle:
        raise source.fault(
            f"{key}.healthcheck",
            f"missing: service {found.service!r} runs {found.argv!r}, and only a health check tells "
            "when it works; write one, or remove the command from the compose file",
        )
    return spec


def limits(table: EnvironmentTable, egress: tuple[str, ...] = ()) -> Limits:
    return Limits(cpus=table.cpus, memory_bytes=table.memory_bytes, disk_bytes=table.disk_bytes, egress=egress)


def _compose(source: TaskDirectory, folder: str) -> ComposeImage | None:
    for name in compose.NAMES:
        if source.has(f"{folder}/{name}"):
            return compose.read_compose(source.file(f"{folder}/{name}"), source.variables)
    return None


def _origin(
    source: TaskDirectory, folder: str, table: EnvironmentTable, found: ComposeImage | None
) -> tuple[Path | None, str | None]:
    """The Dockerfile, or else the ready-made image."""
    if found and found.dockerfile:
        return regular(source.root, found.dockerfile.relative_to(source.root).as_posix()), None
    ready = table.docker_image or (found.docker_image if found else None)
    if ready and not source.has(f"{folder}/Dockerfile"):
        return None, ready
    return source.file(f"{folder}/Dockerfile"), None
