"""A backend that hangs, on the virtual clock: its callers go on in time, and nobody blames the model."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from muster import clock
from muster.errors import ImageError, SandboxLost, SandboxStartError
from muster.lab.fakes.sandbox import FakeBackend, FakeTiming
from muster.sandbox.config import DeadlineConfig
from muster.sandbox.deadlines import BoundedBackend, bounded
from muster.sandbox.port import Sandbox
from muster.types import ImageSpec, Limits

NEVER_S = 1e9
Body = Callable[[BoundedBackend], Awaitable[None]]


def on_slow(body: Body, **timing: float) -> None:
    async def main() -> None:
        await body(BoundedBackend(FakeBackend(FakeTiming(**timing)), DeadlineConfig()))

    clock.run_virtual(main())


async def fork(backend: BoundedBackend) -> Sandbox:
    return await backend.fork(await backend.prepare(ImageSpec()), limits=Limits(), label="slow")


def test_a_fork_that_hangs_is_a_start_error_at_its_deadline() -> None:
    async def body(backend: BoundedBackend) -> None:
        with pytest.raises(SandboxStartError, match="fork did not answer in 120 s"):
            await fork(backend)
        assert clock.now() - started == pytest.approx(120, abs=0.1)

    started = 0.0
    on_slow(body, fork_s=NEVER_S)


def test_an_image_that_hangs_is_an_image_error() -> None:
    async def body(backend: BoundedBackend) -> None:
        with pytest.raises(ImageError, match="prepare did not answer in 660 s"):
            await backend.prepare(ImageSpec())

    on_slow(body, prepare_s=NEVER_S)


def test_a_call_that_hangs_loses_the_sandbox_and_not_by_the_agent() -> None:
    async def body(backend: BoundedBackend) -> None:
        sandbox = await fork(backend)
        with pytest.raises(SandboxLost) as caught:
            await sandbox.snapshot()
        assert not caught.value.by_agent
        assert caught.value.evidence == {"hung": "snapshot", "after_s": 120.0}
        assert not await sandbox.alive()
        with pytest.raises(SandboxLost):  # at once
            await sandbox.run("echo hello", timeout_s=5)
        await sandbox.close()

    on_slow(body, snapshot_s=NEVER_S)


def test_a_close_that_hangs_is_left_to_the_reaper() -> None:
    async def body(backend: BoundedBackend) -> None:
        sandbox = await fork(backend)
        await sandbox.close()

    on_slow(body, close_s=NEVER_S)


def test_a_call_that_ignores_its_cancellation_is_left_behind() -> None:
    async def stubborn() -> None:
        while True:
            try:
                await clock.sleep(NEVER_S)
            except asyncio.CancelledError:
                if clock.now() - began > 50:
                    raise

    async def main() -> None:
        nonlocal began
        began = clock.now()
        task = asyncio.ensure_future(bounded("call", stubborn(), 10))
        await clock.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert clock.now() - began == pytest.approx(11)
        await clock.sleep(50)

    began = 0.0
    clock.run_virtual(main())


def test_an_answer_and_an_error_in_time_pass_through() -> None:
    async def body(backend: BoundedBackend) -> None:
        sandbox = await fork(backend)
        assert (await sandbox.run("echo hello", timeout_s=5)).output == "hello\n"
        with pytest.raises(FileNotFoundError):
            await sandbox.read("/app/missing")
        assert (await sandbox.snapshot()).id
        assert (await sandbox.close()).disk_bytes == 0

    on_slow(body)
