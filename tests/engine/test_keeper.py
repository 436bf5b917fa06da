"""A replica that is kept serving: when it is started again, what the fleet hears, and what it may serve then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster import clock
from muster.engine.emulated.config import EmulatedEngineConfig
from muster.engine.emulated.replica import EmulatedReplica
from muster.engine.emulated.timing import EngineTiming
from muster.engine.fleet import Fleet
from muster.engine.keeper import KeeperConfig, KeptReplica, OnEnd, Patience, keep
from muster.engine.port import CachePolicy, InFlight
from muster.engine.routing.health import ReplicaState
from muster.errors import EngineError, ModelError
from muster.types import Completion, Publication, Sampling, Session, Version

ENGINE = EmulatedEngineConfig(
    timing=EngineTiming(step_s=0.01, prefill_s=1e-4), max_running=8, kv_capacity_tokens=20_000, vocabulary=1000
)
ONE = Version(number=1, digest="one")
PROMPT = np.arange(3, 103, dtype=np.int32)


class Power:
    """Starts emulated servers, and ends them."""

    def __init__(self, *, fails_at: tuple[int, ...] = (), tidy_s: float = 0.0) -> None:
        self.starts: list[float] = []
        self.running: EmulatedReplica | None = None
        self._fails_at, self._tidy_s = fails_at, tidy_s
        self._on_end: OnEnd = lambda words: None

    @asynccontextmanager
    async def start(self, on_end: OnEnd) -> AsyncIterator[EmulatedReplica]:
        self.starts.append(clock.now())
        if len(self.starts) in self._fails_at:
            raise EngineError("out of memory")
        await clock.sleep(2.0)
        self.running, self._on_end = EmulatedReplica("r0", ENGINE), on_end
        try:
            yield self.running
        finally:
            self.running = None
            await clock.sleep(self._tidy_s)

    def cut(self, words: str = "its process ended with -9") -> None:
        assert self.running is not None
        self.running.crash(words)
        self._on_end(words)


def run(body: Awaitable[None]) -> None:
    async def main() -> None:
        await body

    clock.run_virtual(main())


async def say(fleet: Fleet, length: int = 10) -> Completion:
    return await fleet.generate(PROMPT, Sampling(max_tokens=length), Session(id="s"))


async def publish(fleet: Fleet, version: Version = ONE) -> None:
    publication = Publication(version=version, transport="memory", location="", size_bytes=0, dtype="float32")
    (member,) = fleet.replicas
    await member.stage(publication)
    await member.pause(InFlight.HOLD)
    assert await member.commit(version, CachePolicy.KEEP) == version
    await member.resume()
    fleet.serving(version)


def state(fleet: Fleet) -> ReplicaState:
    return fleet.fleet_statistics().states["r0"]


def in_fleet(replica: KeptReplica) -> Fleet:
    fleet = Fleet([replica])
    replica.report_to(fleet)
    return fleet


def test_a_server_that_ended_is_started_again_and_serves_once_the_present_version_was_delivered() -> None:
    async def body() -> None:
        power, words = Power(), list[str]()
        async with keep(power.start, "r0", KeeperConfig(), say=words.append) as replica:
            fleet = in_fleet(replica)
            await publish(fleet)
            power.cut()
            await clock.sleep(0)
            assert state(fleet) is ReplicaState.RESTARTING
            call = asyncio.create_task(say(fleet))
            await clock.sleep(10.0)
            assert power.running is not None
            assert state(fleet) is ReplicaState.STALE
            assert not call.done(), "it holds the weights it started from"
            await publish(fleet)
            assert set((await call).versions_T.tolist()) == {1}
        assert power.running is None
        assert words == ["r0 is started again in 1 s: its process ended with -9"]

    run(body())


def test_while_there_is_no_server_every_call_says_why_at_once() -> None:
    async def body() -> None:
        power = Power()
        async with keep(power.start, "r0", KeeperConfig(first_delay_s=50.0)) as replica:
            power.cut("power cut")
            await clock.sleep(0)
            asked = clock.now()
            with pytest.raises(EngineError, match="r0 is being started again: power cut"):
                await replica.statistics()
            assert clock.now() == asked

    run(body())


def test_the_fleet_hears_of_an_end_before_its_remains_are_tidied_up() -> None:
    async def body() -> None:
        power = Power(tidy_s=30.0)
        async with keep(power.start, "r0", KeeperConfig()) as replica:
            fleet = in_fleet(replica)
            await fleet.statistics()
            power.cut()
            await clock.sleep(1.0)
            assert state(fleet) is ReplicaState.RESTARTING

    run(body())


def test_the_pauses_between_restarts_double_and_one_that_keeps_ending_is_retired() -> None:
    async def body() -> None:
        power, words = Power(), list[str]()
        config = KeeperConfig(restarts_per_hour=4, first_delay_s=1.0, longest_delay_s=4.0)
        async with keep(power.start, "r0", config, say=words.append) as replica:
            fleet = in_fleet(replica)
            for _ in range(5):
                while power.running is None:
                    await clock.sleep(0.5)
                power.cut()
                await clock.sleep(0.0)
            await clock.sleep(10_000.0)
            assert state(fleet) is ReplicaState.RETIRED
            with pytest.raises(EngineError, match="is not started again"):
                await replica.statistics()
        assert len(power.starts) == 5
        waits = [round(b - a - 2.0) for a, b in zip(power.starts, power.starts[1:], strict=False)]
        assert waits == [1, 2, 4, 4]
        assert "too often" in words[-1]

    run(body())


def test_a_restart_that_fails_is_an_end_like_any_other() -> None:
    async def body() -> None:
        power, words = Power(fails_at=(2, 3)), list[str]()
        async with keep(power.start, "r0", KeeperConfig(), say=words.append) as replica:
            power.cut()
            await clock.sleep(60.0)
            assert (await replica.statistics()).replica == "r0"
        assert len(power.starts) == 4
        assert words[1] == "r0 is started again in 2 s: out of memory"

    run(body())


@pytest.mark.parametrize("error", [EngineError("no model"), ModelError("no config.json"), RuntimeError("a bug")])
def test_a_first_start_that_fails_is_the_callers_error(error: Exception) -> None:
    @asynccontextmanager
    async def broken(on_end: OnEnd) -> AsyncIterator[EmulatedReplica]:
        raise error
        yield

    async def body() -> None:
        with pytest.raises(type(error), match=str(error)):
            async with keep(broken, "r0", KeeperConfig()):
                pass

    run(body())


def test_the_end_of_the_block_ends_a_wait_for_a_restart() -> None:
    async def body() -> None:
        power = Power()
        async with keep(power.start, "r0", KeeperConfig(first_delay_s=1000.0, longest_delay_s=1000.0)):
            power.cut()
            await clock.sleep(1.0)
        assert clock.now() < 10.0
        assert len(asyncio.all_tasks()) == 1

    run(body())


@given(
    gaps=st.lists(st.integers(0, 4000), max_size=60),
    limit=st.integers(0, 8),
)
def test_no_hour_has_more_restarts_than_configured(gaps: list[int], limit: int) -> None:
    config = KeeperConfig(restarts_per_hour=limit, first_delay_s=1.0, longest_delay_s=60.0)
    patience, now, restarts = Patience(config), 0.0, list[float]()
    for gap in gaps:
        now += gap
        delay_s = patience.ended(now)
        if delay_s is None:
            break
        assert 1.0 <= delay_s <= 60.0
        restarts.append(now)
    for at in restarts:
        assert sum(at <= other < at + 3600.0 for other in restarts) <= limit
