"""Images at a daemon: built from a Dockerfile, pulled by name, or the plain base, each a snapshot to fork from.

    dockerfile + context ─digest─► tag muster/image:<digest> there? │ build it ─┐
    docker_image, or the base ─► there? │ pull it ──────────────────────────────┴► inspect ─► Snapshot
                                                              a service: started once, healthy, frozen ─┘

Law: the same content gives the same image. With `egress = none` nothing is fetched: a missing image is an error that
says so. The daemon's builder does the building; it knows what its version supports.
"""

from __future__ import annotations

import hashlib
import shlex
from collections import deque
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from docker.errors import APIError, ImageNotFound

from muster.errors import ImageError, SandboxError
from muster.sandbox.config import SandboxConfig
from muster.sandbox.docker.daemon import Client, Daemon, Missing
from muster.sandbox.docker.labels import IMAGE
from muster.sandbox.dockerfile.parsing import parse
from muster.sandbox.dockerfile.recipe import SCRATCH, Stages
from muster.sandbox.dockerfile.startup import Startup
from muster.sandbox.port import Service, Snapshot
from muster.tasks.content import directory_digest
from muster.types import HealthCheck, ImageSpec

REPOSITORY = "muster/image"
_LOG_LINES = 60
_NANO = 1e9  # the daemon keeps times in nanoseconds, 0 for the default
_SHELLS = frozenset({"bash", "sh", "dash", "ash"})
_FOREVER = ("sleep", "infinity")


class Images:
    """Prepares images at one daemon."""

    def __init__(self, daemon: Daemon, config: SandboxConfig) -> None:
        self._daemon = daemon
        self._config = config

    async def prepare(self, image: ImageSpec) -> Snapshot:
        """Raises `ImageError`, with the end of the build log."""
        try:
            found = await self._daemon.call(
                "prepare", lambda api: self._find(api, image), timeout_s=image.build_timeout_s
            )
        except ImageError:
            raise
        except SandboxError as error:
            raise ImageError(str(error), error.evidence) from None
        return snapshot_of(found, image)

    async def find(self, name: str) -> str | None:
        """The id of an image that is there."""
        try:
            found: dict[str, Any] = await self._daemon.call("inspect image", lambda api: api.inspect_image(name))
        except Missing:
            return None
        return str(found["Id"])

    def _find(self, api: Client, image: ImageSpec) -> dict[str, Any]:
        if image.dockerfile is None:
            return self._present(api, image.docker_image or self._config.docker_base_image)
        tag = f"{REPOSITORY}:{digest(image)}"
        try:
            return api.inspect_image(tag)
        except ImageNotFound:
            self._build(api, image, tag)
        return api.inspect_image(tag)

    def _present(self, api: Client, name: str) -> dict[str, Any]:
        try:
            return api.inspect_image(name)
        except ImageNotFound:
            self._pull(api, name)
        return api.inspect_image(name)

    def _pull(self, api: Client, name: str) -> None:
        if self._config.egress == "none":
            raise ImageError(f"{name}: not at {self._daemon.host}, and sandbox.egress = none forbids to pull it")
        repository, tag = (name, None) if "@" in name or ":" in name.rpartition("/")[2] else (name, "latest")
        try:
            api.pull(repository, tag=tag)
        except APIError as error:
            raise ImageError(f"{name}: cannot be pulled: {error.explanation}") from None

    def _build(self, api: Client, image: ImageSpec, tag: str) -> None:
        assert image.dockerfile is not None
        stages = _stages(image)
        for number in range(stages.target(image.target) + 1):
            if isinstance(name := stages.base(number), str) and name != SCRATCH:
                self._present(api, name)
        log = deque[str](maxlen=_LOG_LINES)
        try:
            for event in api.build(
                path=str(image.context or image.dockerfile.parent),
                dockerfile=str(image.dockerfile.resolve()),
                tag=tag,
                labels={IMAGE: tag.rpartition(":")[2]},
                buildargs=dict(image.build_args),
                target=image.target,
                network_mode="none" if self._config.egress == "none" else None,
                rm=True,
                forcerm=True,
                decode=True,
            ):
                log.extend(str(event.get("stream", "")).splitlines())
                if "error" in event:
                    raise ImageError(f"{image.dockerfile}: {event['error']}", {"log": "\n".join(log)})
        except APIError as error:
            raise ImageError(f"{image.dockerfile}: {error.explanation}", {"log": "\n".join(log)}) from None


def digest(image: ImageSpec) -> str:
    """Of all that a build depends on."""
    assert image.dockerfile is not None
    context = image.context or image.dockerfile.parent
    parts = (
        directory_digest(context),
        image.dockerfile.read_text(encoding="utf-8"),
        repr(sorted(image.build_args.items())),
        str(image.target),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def snapshot_of(inspected: Mapping[str, Any], image: ImageSpec) -> Snapshot:
    """Snapshot that a fork starts with: the image's own settings, under those of the task."""
    config: Mapping[str, Any] = inspected["Config"] or {}
    env = dict(line.partition("=")[::2] for line in config.get("Env") or ())
    return Snapshot(
        id=str(inspected["Id"]),
        workdir=image.workdir or config.get("WorkingDir") or "/",
        env={**env, **image.env},
        user=image.user or config.get("User") or "",
        service=_service(config, image),
    )


def _service(config: Mapping[str, Any], image: ImageSpec) -> Service | None:
    """With a health check, the image's own process. A shell that nobody types into would end at once."""
    check = image.health or _health(config.get("Healthcheck") or {}) or _written_health(image)
    if check is None:
        return None
    entrypoint = image.entrypoint or tuple(config.get("Entrypoint") or ())
    command = image.command or (() if image.entrypoint else tuple(config.get("Cmd") or ()))
    argv = (*entrypoint, *command)
    idle = not argv or (len(argv) == 1 and PurePosixPath(argv[0]).name in _SHELLS)
    return Service(command=_FOREVER if idle else argv, check=check, user=config.get("User") or "")


def _health(said: Mapping[str, Any]) -> HealthCheck | None:
    kind, *words = said.get("Test") or ("NONE",)
    if kind not in ("CMD", "CMD-SHELL") or not words:
        return None
    return HealthCheck(
        command=words[0] if kind == "CMD-SHELL" else shlex.join(words),
        interval_s=(said.get("Interval") or 30 * _NANO) / _NANO,
        timeout_s=(said.get("Timeout") or 30 * _NANO) / _NANO,
        start_period_s=(said.get("StartPeriod") or 0) / _NANO,
        retries=said.get("Retries") or 3,
    )


def _written_health(image: ImageSpec) -> HealthCheck | None:
    """A Dockerfile's HEALTHCHECK, which Podman leaves out of the image unless it is asked for Docker's format."""
    if image.dockerfile is None or "HEALTHCHECK" not in image.dockerfile.read_text(encoding="utf-8").upper():
        return None
    stages = _stages(image)

    def startup(number: int) -> Startup:
        below = stages.base(number)
        return stages.recipe(number, startup(below) if isinstance(below, int) else Startup()).startup

    return startup(stages.target(image.target)).health


def _stages(image: ImageSpec) -> Stages:
    assert image.dockerfile is not None
    return Stages(parse(image.dockerfile.read_text(encoding="utf-8"), image.dockerfile), image.build_args)
