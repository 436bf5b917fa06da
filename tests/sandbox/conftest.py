"""Backends for a body that runs in real time: namespace on a private state directory, docker at a private daemon."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import daemons
from muster import clock
from muster.sandbox.config import SandboxConfig
from muster.sandbox.namespace.backend import NamespaceBackend
from sandbox.docker import docker_world

Body = Callable[[NamespaceBackend], Awaitable[None]]
OnBackend = Callable[..., None]


@pytest.fixture
def on_backend(tmp_path: Path) -> OnBackend:
    """`on_backend(body, **config)` runs it, and asserts that nothing is left."""

    def run(body: Body, **config: Any) -> None:
        async def main() -> None:
            settings = SandboxConfig(**{"state_dir": tmp_path / "state", "kill_grace_s": 0.1, **config})
            backend = NamespaceBackend(settings)
            try:
                await body(backend)
            finally:
                await backend.close()
            assert [p.name for p in (settings.state_dir / "runs").iterdir()] == [".lock"]

        clock.run(main())

    return run


@pytest.fixture(params=list(daemons.KINDS))
def on_each(request: pytest.FixtureRequest) -> docker_world.OnDaemon:
    """`on_each(body, **config)` runs it at each kind of daemon."""
    host = daemons.host(request.param)
    return lambda body, **config: docker_world.run(host, body, **config)


@pytest.fixture
def on_docker() -> docker_world.OnDaemon:
    host = daemons.host("docker")
    return lambda body, **config: docker_world.run(host, body, **config)
