"""A namespace backend on a private state directory, for a body that runs in real time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from muster import clock
from muster.sandbox.config import SandboxConfig
from muster.sandbox.namespace import NamespaceBackend

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
            assert [p.name for p in (tmp_path / "state" / "runs").iterdir()] == [".lock"]

        clock.run(main())

    return run
