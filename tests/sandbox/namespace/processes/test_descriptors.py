"""No descriptor is left: of ended shells, of services, of failed starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from muster.errors import SandboxStartError
from muster.sandbox.namespace.backend import NamespaceBackend
from muster.sandbox.port import Service
from muster.types import HealthCheck, ImageSpec, Limits
from sandbox.conftest import OnBackend

pytestmark = pytest.mark.sandbox
CHECK = HealthCheck(command="test -f /tmp/up", interval_s=0.05, retries=3)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_shells_that_end_again_and_again_cost_nothing(on_backend: OnBackend) -> None:
    async def body(backend: NamespaceBackend) -> None:
        sandbox = await backend.fork(await backend.prepare(ImageSpec()), limits=Limits(), label="x")
        await sandbox.run("exit", timeout_s=5)
        before = descriptors()
        for _ in range(10):
            assert (await sandbox.run("exit", timeout_s=5)).shell_restarted
            assert (await sandbox.run("exit", timeout_s=5, session="other")).shell_restarted
        # the other session's own five, and output that is about to end
        assert descriptors() <= before + 10

    on_backend(body)


def test_a_sandbox_with_sessions_and_a_service_gives_all_back(on_backend: OnBackend) -> None:
    async def body(backend: NamespaceBackend) -> None:
        image = await backend.prepare(ImageSpec())
        good = Service(command=("/bin/sh", "-c", "touch /tmp/up; sleep 1000"), check=CHECK)
        bad = replace(good, command=("/bin/sh", "-c", "sleep 1000"))
        await (await backend.fork(image, limits=Limits(), label="first")).close()
        before = descriptors()
        for _ in range(5):
            sandbox = await backend.fork(replace(image, service=good), limits=Limits(), label="x")
            for session in ("main", "a", "b"):
                await sandbox.run("sleep 1000 &", timeout_s=5, session=session)
            await backend.discard(await sandbox.snapshot())
            await sandbox.run("true", timeout_s=5)
            await sandbox.close()
            with pytest.raises(SandboxStartError):
                await backend.fork(replace(image, service=bad), limits=Limits(), label="y")
            with pytest.raises(SandboxStartError):
                await backend.fork(replace(image, user="ghost"), limits=Limits(), label="z")
        await backend._janitor.close()  # pyright: ignore
        assert descriptors() <= before + 2

    on_backend(body)
