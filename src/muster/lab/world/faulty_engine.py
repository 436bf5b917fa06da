"""Replicas with the faults of a simulated world.

    Agent ─► Fleet ─► FaultyReplica ─► FakeReplica ◄─ mishaps: crash … restart with old weights
                            ▲ stage, pause, commit, resume: slow, lost or doubled ◄─ Publisher

Law: what fails, fails as `EngineError`, or never answers; the deadline is the fleet's. A replica that came back holds
old weights, and serves nothing until a commit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from muster import clock
from muster.engine.port import CachePolicy, EngineStatistics, InFlight, Pause, Scores, Staged
from muster.lab.fakes.engine import FakeReplica
from muster.lab.faults import ReplicaCall
from muster.lab.world.chaos import Chaos, Fault
from muster.types import Completion, Ints, Publication, Sampling, Session, Version

MISHAP_EVERY_S = 1800.0
MISHAPS_UNTIL_S = 6 * 3600.0  # after which even the unluckiest world gets its work done

_T = TypeVar("_T")


class FaultyReplica:
    """Implements `engine.port.Replica`."""

    def __init__(self, inner: FakeReplica, chaos: Chaos) -> None:
        self.name = inner.name
        self.inner = inner
        self._chaos = chaos

    async def generate(self, tokens: Ints, sampling: Sampling, session: Session) -> Completion:
        if self._chaos.happens(Fault.ENGINE_HANG):
            self.inner.faults.hang("generate")
        return await self.inner.generate(tokens, sampling, session)

    async def score(self, tokens: Ints, *, temperature: float) -> Scores:
        return await self.inner.score(tokens, temperature=temperature)

    async def statistics(self) -> EngineStatistics:
        return await self.inner.statistics()

    def supports(self, in_flight: InFlight, cache: CachePolicy) -> str | None:
        return self.inner.supports(in_flight, cache)

    async def stage(self, publication: Publication) -> Staged:
        if self._chaos.happens(Fault.SLOW_PUBLISH):
            await clock.sleep(float(self._chaos.rng.uniform(10.0, 200.0)))
        return await self._called("stage", lambda: self.inner.stage(publication))

    async def pause(self, in_flight: InFlight) -> Pause:
        return await self._called("pause", lambda: self.inner.pause(in_flight))

    async def commit(self, version: Version, cache: CachePolicy) -> Version:
        return await self._called("commit", lambda: self.inner.commit(version, cache))

    async def resume(self) -> None:
        await self._called("resume", self.inner.resume)

    async def _called(self, name: ReplicaCall, call: Callable[[], Awaitable[_T]]) -> _T:
        """The work is done once or twice; the answer may be lost."""
        if self._chaos.happens(Fault.DOUBLED_ACK):
            await call()
        answer = await call()
        if self._chaos.happens(Fault.LOST_ACK):
            raise self.inner.faults.lost(name)
        return answer

    async def mishaps(self) -> None:
        """Crash and come back, now and then, for as long as mishaps last."""
        chaos = self._chaos
        while clock.now() < MISHAPS_UNTIL_S:
            await clock.sleep(float(chaos.rng.exponential(MISHAP_EVERY_S)))
            for fault, down_s in ((Fault.ENGINE_CRASH, chaos.rng.uniform(1.0, 120.0)), (Fault.ENGINE_RESTART, 0.0)):
                if chaos.happens(fault):
                    self.inner.crash()
                    await clock.sleep(float(down_s))
                    self.inner.restart()
