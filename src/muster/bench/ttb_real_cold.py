"""A backend whose sandboxes cost what common practice pays: a cold start for each trajectory, a graceful stop after it.

    fork(label) ─ inner fork ─ what the declared cold start takes beyond it ─► Sandbox
    close()     ─ the stop's grace, while the slot is held ─ inner close

Law: real sandboxes do the work; only time is added, and only where the declaration says so. A start that takes longer
by itself is not shortened. Forks with mounts are verifiers', which common practice runs in a container that lives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from muster import clock
from muster.sandbox.port import MAIN, Counters, Mount, Result, Sandbox, SandboxBackend, Snapshot
from muster.types import ImageSpec, Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdBackend:
    """Implements `sandbox.port.SandboxBackend` over `inner`. `start_s` gives the whole cold start of a label."""

    inner: SandboxBackend
    start_s: Callable[[str], float]
    stop_s: float

    async def prepare(self, image: ImageSpec) -> Snapshot:
        return await self.inner.prepare(image)

    async def fork(
        self,
        snapshot: Snapshot,
        *,
        limits: Limits,
        label: str,
        mounts: tuple[Mount, ...] = (),
        toolchain: Snapshot | None = None,
    ) -> Sandbox:
        asked = clock.now()
        sandbox = await self.inner.fork(snapshot, limits=limits, label=label, mounts=mounts, toolchain=toolchain)
        if mounts:
            return sandbox
        try:
            await clock.sleep(max(0.0, asked + self.start_s(label) - clock.now()))
        except BaseException:
            await sandbox.close()
            raise
        return _Graceful(sandbox, self.stop_s)

    async def restore(self, id: str) -> Snapshot | None:
        return await self.inner.restore(id)

    async def discard(self, snapshot: Snapshot) -> None:
        await self.inner.discard(snapshot)

    async def close(self) -> None:
        await self.inner.close()


class _Graceful:
    """A sandbox that is asked to stop before it is killed."""

    def __init__(self, inner: Sandbox, stop_s: float) -> None:
        self.id = inner.id
        self._inner = inner
        self._stop_s = stop_s

    async def run(
        self, command: str, timeout_s: float, *, silence_s: float | None = None, session: str = MAIN
    ) -> Result:
        return await self._inner.run(command, timeout_s, silence_s=silence_s, session=session)

    async def read(self, path: str) -> bytes:
        return await self._inner.read(path)

    async def write(self, path: str, data: bytes) -> None:
        await self._inner.write(path, data)

    async def snapshot(self) -> Snapshot:
        return await self._inner.snapshot()

    async def keep(self) -> Snapshot | None:
        return await self._inner.keep()

    async def alive(self) -> bool:
        return await self._inner.alive()

    async def close(self) -> Counters:
        stop_s, self._stop_s = self._stop_s, 0.0
        await clock.sleep(stop_s)
        return await self._inner.close()
