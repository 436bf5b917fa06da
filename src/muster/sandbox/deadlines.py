"""A deadline on every backend call, from outside. Law: whatever a backend does, its caller goes on in time.

    call ─► its own task ─► in time: its answer │ too late: cancelled and left behind, the sandbox is lost (not by
                                                  the agent), and closed in the background

A call that hangs is infrastructure: it says nothing about the model. Wraps any backend; the contract stays the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from muster import clock
from muster.errors import ImageError, SandboxLost, SandboxStartError
from muster.sandbox.config import DeadlineConfig
from muster.sandbox.port import MAIN, Counters, Mount, Result, Sandbox, SandboxBackend, Snapshot
from muster.types import ImageSpec, Limits

_T = TypeVar("_T")


class Hung(Exception):
    """A call did not answer in time."""

    def __init__(self, call: str, after_s: float) -> None:
        super().__init__(f"{call} did not answer in {after_s:g} s")
        self.evidence = {"hung": call, "after_s": after_s}


async def bounded(call: str, work: Coroutine[Any, Any, _T], after_s: float) -> _T:
    """The result of `work`, or `Hung`. A call that ignores its cancellation is left behind.

    Cancelling this cancels the call and waits for it, within the same deadline: it may have to interrupt something.
    """
    task = asyncio.get_running_loop().create_task(work)
    try:
        async with clock.timeout(after_s):
            return await asyncio.shield(task)
    except TimeoutError:
        if task.done() and not task.cancelled():
            return task.result()  # its own TimeoutError, or an answer in the last moment
        _abandon(task)
        raise Hung(call, after_s) from None
    except asyncio.CancelledError:
        await _cancel(task, after_s)
        raise


async def _cancel(task: asyncio.Task[Any], within_s: float) -> None:
    task.cancel()
    try:
        async with clock.timeout(within_s):
            await asyncio.shield(asyncio.gather(task, return_exceptions=True))
    except TimeoutError:
        _abandon(task)


def _abandon(task: asyncio.Task[Any]) -> None:
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # looked at: no warning of its own
    task.cancel()


class BoundedBackend:
    """Implements `sandbox.port.SandboxBackend` over another one.

    Example: `backend = BoundedBackend(NamespaceBackend(config), DeadlineConfig())`
    """

    def __init__(self, backend: SandboxBackend, deadlines: DeadlineConfig) -> None:
        self._backend = backend
        self._deadlines = deadlines

    async def prepare(self, image: ImageSpec) -> Snapshot:
        after_s = image.build_timeout_s + self._deadlines.build_s
        try:
            return await bounded("prepare", self._backend.prepare(image), after_s)
        except Hung as hung:
            raise ImageError(f"{image.dockerfile}: {hung}", hung.evidence) from None

    async def fork(
        self,
        snapshot: Snapshot,
        *,
        limits: Limits,
        label: str,
        mounts: tuple[Mount, ...] = (),
        toolchain: Snapshot | None = None,
    ) -> Sandbox:
        work = self._backend.fork(snapshot, limits=limits, label=label, mounts=mounts, toolchain=toolchain)
        try:
            inner = await bounded("fork", work, self._deadlines.start_s)
        except Hung as hung:
            raise SandboxStartError(f"{label}: {hung}", hung.evidence) from None
        return BoundedSandbox(inner, self._deadlines)

    async def restore(self, id: str) -> Snapshot | None:
        try:
            return await bounded("restore", self._backend.restore(id), self._deadlines.snapshot_s)
        except Hung:
            return None

    async def discard(self, snapshot: Snapshot) -> None:
        try:
            await bounded("discard", self._backend.discard(snapshot), self._deadlines.close_s)
        except Hung:
            return  # the reaper finds it

    async def close(self) -> None:
        await self._backend.close()


class BoundedSandbox:
    """Implements `sandbox.port.Sandbox` over another one. After a call that hung it is lost."""

    def __init__(self, inner: Sandbox, deadlines: DeadlineConfig) -> None:
        self.id = inner.id
        self._inner = inner
        self._deadlines = deadlines
        self._lost: SandboxLost | None = None

    async def run(
        self, command: str, timeout_s: float, *, silence_s: float | None = None, session: str = MAIN
    ) -> Result:
        work = self._inner.run(command, timeout_s, silence_s=silence_s, session=session)
        return await self._bounded("run", work, timeout_s + self._deadlines.run_s)

    async def read(self, path: str) -> bytes:
        return await self._bounded("read", self._inner.read(path), self._deadlines.file_s)

    async def write(self, path: str, data: bytes) -> None:
        await self._bounded("write", self._inner.write(path, data), self._deadlines.file_s)

    async def snapshot(self) -> Snapshot:
        return await self._bounded("snapshot", self._inner.snapshot(), self._deadlines.snapshot_s)

    async def keep(self) -> Snapshot | None:
        return await self._bounded("keep", self._inner.keep(), self._deadlines.snapshot_s)

    async def alive(self) -> bool:
        if self._lost is not None:
            return False
        try:
            return await bounded("alive", self._inner.alive(), self._deadlines.file_s)
        except Hung:
            return False

    async def close(self) -> Counters:
        try:
            return await bounded("close", self._inner.close(), self._deadlines.close_s)
        except Hung:
            return Counters()

    async def _bounded(self, call: str, work: Coroutine[Any, Any, _T], after_s: float) -> _T:
        if self._lost is not None:
            work.close()
            raise self._lost
        try:
            return await bounded(call, work, after_s)
        except Hung as hung:
            self._lost = SandboxLost(f"{self.id}: {hung}", by_agent=False, evidence=hung.evidence)
            raise self._lost from None
