"""A sandbox backend with the latencies and the faults of a simulated world, around the fake one.

    deadlines.BoundedBackend ─► FaultyBackend ─► FakeBackend        as in production, the deadline is outermost

Law: a fault is what a backend can do to us: not start, answer late, never answer, vanish. Which attempt it hit is
written down, so that the laws can ask whether the model was blamed.
"""

from __future__ import annotations

import asyncio

from muster import clock
from muster.errors import SandboxLost, SandboxStartError
from muster.lab.collection.workload import Lognormal
from muster.lab.fakes.sandbox import FakeBackend, FakeSandbox
from muster.lab.world.chaos import Chaos, Fault
from muster.lab.world.scenario import Scenario
from muster.sandbox.port import MAIN, Counters, Mount, Result, Sandbox, Snapshot
from muster.types import ImageSpec, Limits

OUTAGE_S = 600.0
_COLD_BOOT = Lognormal(median=23.0, sigma=0.5, cap=97.0)
_STALL = Lognormal(median=5.0, sigma=1.0, cap=25.0)  # below the deadline that would make it a hang


class FaultyBackend:
    """Implements `sandbox.port.SandboxBackend`. `leaks` makes it forget to close: a broken law, for tests."""

    def __init__(self, inner: FakeBackend, scenario: Scenario, chaos: Chaos, *, leaks: bool = False) -> None:
        self.inner = inner
        self.leaks = leaks
        self.most_live = 0
        self._scenario = scenario
        self._chaos = chaos

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
        chaos, boot_s = self._chaos, self._scenario.workload.boot_s
        await clock.sleep((_COLD_BOOT if chaos.happens(Fault.SLOW_BOOT) else boot_s).draw(chaos.rng))
        if chaos.happens(Fault.BOOT_FAILURE) or (self._outage and chaos.happens(Fault.BOOT_OUTAGE)):
            chaos.mark_faulted(label)
            raise SandboxStartError(f"{label}: injected")
        sandbox = await self.inner.fork(snapshot, limits=limits, label=label, mounts=mounts, toolchain=toolchain)
        self.most_live = max(self.most_live, self.inner.live)
        return FaultySandbox(sandbox, self, chaos)

    async def restore(self, id: str) -> Snapshot | None:
        return await self.inner.restore(id)

    async def discard(self, snapshot: Snapshot) -> None:
        await self.inner.discard(snapshot)

    async def close(self) -> None:
        await self.inner.close()

    @property
    def _outage(self) -> bool:
        return 0.0 <= clock.now() - self._scenario.outage_at_s < OUTAGE_S


class FaultySandbox:
    """Implements `sandbox.port.Sandbox`."""

    def __init__(self, inner: FakeSandbox, backend: FaultyBackend, chaos: Chaos) -> None:
        self.id = inner.id
        self._inner = inner
        self._backend = backend
        self._chaos = chaos

    async def run(
        self, command: str, timeout_s: float, *, silence_s: float | None = None, session: str = MAIN
    ) -> Result:
        await self._mishap()
        return await self._inner.run(command, timeout_s, silence_s=silence_s, session=session)

    async def read(self, path: str) -> bytes:
        return await self._inner.read(path)

    async def write(self, path: str, data: bytes) -> None:
        await self._inner.write(path, data)

    async def snapshot(self) -> Snapshot:
        return await self._inner.snapshot()

    async def keep(self) -> Snapshot | None:
        await self._mishap()
        return await self._inner.keep()

    async def alive(self) -> bool:
        return await self._inner.alive()

    async def close(self) -> Counters:
        if self._backend.leaks:
            return Counters()
        if self._chaos.happens(Fault.DOUBLED_ACK):
            await self._inner.close()
        return await self._inner.close()

    async def _mishap(self) -> None:
        """Inject what may happen to a sandbox while something is done to it."""
        chaos = self._chaos
        if chaos.happens(Fault.SANDBOX_HANG):
            chaos.mark_faulted()
            await asyncio.Event().wait()
        if chaos.happens(Fault.SANDBOX_SLOW):
            await clock.sleep(_STALL.draw(chaos.rng))
        if chaos.happens(Fault.SANDBOX_DEATH):
            chaos.mark_faulted()
            self._inner.lose()
            raise SandboxLost(f"{self.id}: injected", by_agent=False, evidence={"injected": True})
