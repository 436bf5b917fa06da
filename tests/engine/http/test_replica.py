"""A replica behind HTTP in a fleet: what it cannot do now another one does, and slow weights have time to arrive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import numpy as np

from contract.engine_rigs import EMULATED
from muster import clock
from muster.engine.fleet.fleet import Fleet
from muster.engine.fleet.health import ReplicaState
from muster.engine.http.replica import HttpReplica
from muster.engine.port import EngineStatistics, Staged
from muster.errors import EngineError
from muster.lab.emulated.engine import EmulatedEngine
from muster.lab.emulated.serve import serving
from muster.lab.faults import INITIAL
from muster.types import Completion, Ints, Publication, Sampling, Session, Version

PROMPT = np.arange(3, 103, dtype=np.int32)


class Dead(EmulatedEngine):
    """Its core has died behind a server that still answers."""

    async def generate(self, request_id: str, tokens: Ints, sampling: Sampling, session: Session) -> Completion:
        raise EngineError(f"{self.name}: EngineDeadError()")

    async def statistics(self, *, take_intervals: bool) -> EngineStatistics:
        if self.asked:
            raise EngineError(f"{self.name}: EngineDeadError()")
        self.asked = True
        return await super().statistics(take_intervals=take_intervals)

    asked = False


class Slow(EmulatedEngine):
    async def stage(self, publication: Publication) -> Staged:
        await clock.sleep(0.4)
        return await super().stage(publication)


@asynccontextmanager
async def behind_http(engine: EmulatedEngine, *, control_timeout_s: float = 10.0) -> AsyncIterator[HttpReplica]:
    async with (
        serving(engine, token=None) as url,
        HttpReplica(engine.name, url, control_timeout_s=control_timeout_s, request_timeout_s=10.0) as replica,
    ):
        yield replica


def run(body: Awaitable[None]) -> None:
    async def main() -> None:
        async with clock.timeout(20):
            await body

    clock.run(main())


def test_a_request_that_a_server_cannot_serve_now_is_served_by_another_one() -> None:
    async def body() -> None:
        dead, alive = (kind(EMULATED, name=f"r{i}", version=INITIAL) for i, kind in enumerate((Dead, EmulatedEngine)))
        async with behind_http(dead) as first, behind_http(alive) as second:
            fleet = Fleet([first, second])
            calls = [fleet.generate(PROMPT, Sampling(max_tokens=5), Session(id=f"s{i}")) for i in range(4)]
            assert {completion.replica for completion in await asyncio.gather(*calls)} == {"r1"}
            assert fleet.fleet_statistics().states["r0"] is not ReplicaState.HEALTHY

    run(body())


def test_staging_may_take_longer_than_a_control_call() -> None:
    async def body() -> None:
        engine = Slow(EMULATED, name="r0", version=INITIAL)
        async with behind_http(engine, control_timeout_s=0.2) as replica:
            publication = Publication(
                version=Version(number=1, digest="one"), transport="memory", location="", size_bytes=0, dtype="float32"
            )
            assert isinstance(await replica.stage(publication), Staged)

    run(body())
