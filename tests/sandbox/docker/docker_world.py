"""The docker backend at the daemons of the test session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from muster import clock
from muster.sandbox.config import SandboxConfig
from muster.sandbox.docker.backend import DockerBackend
from muster.sandbox.docker.instance import DockerSandbox
from muster.types import ImageSpec, Limits

Body = Callable[[DockerBackend], Awaitable[None]]
OnDaemon = Callable[..., None]


def run(host: str, body: Body, **settings: Any) -> None:
    """Runs `body` with a backend that is closed in the end."""

    async def main() -> None:
        config = SandboxConfig(**{"docker_host": host, "kill_grace_s": 0.1, "egress": "none", **settings})
        backend = DockerBackend(config, run="test")
        try:
            await body(backend)
        finally:
            await backend.close()

    clock.run(main())


async def fresh(backend: DockerBackend, limits: Limits | None = None) -> DockerSandbox:
    image = await backend.prepare(ImageSpec(workdir="/app"))
    return await backend.fork(image, limits=limits or Limits(), label="test")
