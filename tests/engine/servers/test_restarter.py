"""A server that is kept running: when it is started again, what the fleet hears, and what it may serve then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster import clock
from muster.engine.config import EmulatedEngineConfig, ServersConfig
from muster.engine.fleet.fleet import Fleet
from muster.engine.fleet.health import ReplicaState
from muster.engine.port import CachePolicy, EngineStatistics, InFlight, Replica
from muster.engine.servers.restarter import Patience, Start, restarting
from muster.engine.servers.running import OnEnd, Silence
from muster.engine.timing import EngineTiming
from muster.errors import EngineError, ModelError
from muster.lab.emulated.replica import EmulatedReplica
from muster.types import Completion, Ints, Publication, Sampling, Session, Version

ENGINE = EmulatedEngineConfig(
    timing=EngineTiming(step_s=0.01, prefill_s=1e-4), max_running=8, kv_capacity_tokens=20_000, vocabulary=1000
)
ONE = Version(number=1, digest="one")
PROMPT = np.arange(3, 103, dtype=np.int32)


class Server(EmulatedReplica):
    """One that can get stuck: it is called, and never answers."""

    stuck = False

    async def generate(self, tokens: Ints, sampling: Sampling, session: Session) -> Completion:
        await self._stuck()
        return await super().generate(tokens, sampling, session)

    async def statistics(self) -> EngineStatistics:
        await self._stuck()
        return await super().statistics()

    async def _stuck(self) -> None:
        while self.stuck:
            await clock.sleep(1.0)


class Power:
    """Starts emulated servers, and ends them."""

    def __init__(self, *, fails_at: tuple[int, ...] = (), tidy_s: float = 0.0) -> None:
        self.starts: list[float] = []
        self.running: Server | None = None
        self._fails_at, self._tidy_s = fails_at, tidy_s
        self._on_end: OnEnd = lambda words: None

    @asynccontextmanager
    async def start(self, on_end: OnEnd) -> AsyncIterator[EmulatedReplica]:
        self.starts.append(clock.now())
        if len(self.starts) in self._fails_at:
            raise EngineError("out of memory")
        await clock.sleep(2.0)
        self.running, self._on_end = Server("r0", ENGINE), on_end
        try:
            yield self.running
        finally:
            self.running = None
            await clock.sleep(self._tidy_s)

    def cut(self, words: str = "its process ended with -9") -> None:
        assert self.running is not None
        self.running.crash(words)
        self._on_end(words)


_DEFAULT = ServersConfig()


@asynccontextmanager
async def kept(
    start: Start,
    config: ServersConfig = _DEFAULT,
    *,
    ours: bool = True,
    say: Callable[[str], None] = lambda words: None,
) -> AsyncIterator[Fleet]:
    """A fleet of one. Errors as they are raised, out of their groups."""
    fleet = Fleet(["r0"])
    (seat,) = fleet.replicas
    try:
        async with (
            asyncio.TaskGroup() as restarters,
            restarting(start, seat, config, restarters=restarters, ours=ours, say=say),
        ):
            yield fleet
    except BaseExceptionGroup as group:
        (error,) = group.exceptions
        raise error from None


async def unheard(replica: Replica, timeout_s: float) -> None:
    with pytest.raises(TimeoutError):
        async with clock.timeout(timeout_s):
            await replica.statistics()


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


def test_a_server_that_ended_is_started_again_and_serves_once_the_present_version_was_delivered() -> None:
    async def body() -> None:
        power, words = Power(), list[str]()
        async with kept(power.start, say=words.append) as fleet:
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
        async with kept(power.start, ServersConfig(first_delay_s=50.0)) as fleet:
            power.cut("power cut")
            await clock.sleep(0)
            (seat,), asked = fleet.replicas, clock.now()
            publication = Publication(version=ONE, transport="memory", location="", size_bytes=0, dtype="float32")
            for call in (
                seat.statistics(),
                seat.generate(PROMPT, Sampling(), Session(id="s")),
                seat.score(PROMPT, temperature=1.0),
                seat.stage(publication),
                seat.pause(InFlight.HOLD),
                seat.commit(ONE, CachePolicy.KEEP),
                seat.resume(),
            ):
                with pytest.raises(EngineError, match="r0 is being started again: power cut"):
                    await call
            assert clock.now() == asked

    run(body())


def test_what_never_changes_is_known_from_the_first_start_on_also_while_there_is_no_server() -> None:
    async def body() -> None:
        power = Power()
        (seat,) = Fleet(["r0"]).replicas
        assert seat.supports(InFlight.HOLD, CachePolicy.KEEP) == "it was not started yet"
        async with asyncio.TaskGroup() as restarters, restarting(power.start, seat, _DEFAULT, restarters=restarters):
            assert seat.supports(InFlight.HOLD, CachePolicy.KEEP) is None
            power.cut()
            await clock.sleep(0)
            assert seat.supports(InFlight.HOLD, CachePolicy.KEEP) is None

    run(body())


def test_the_fleet_hears_of_an_end_before_its_remains_are_tidied_up() -> None:
    async def body() -> None:
        power = Power(tidy_s=30.0)
        async with kept(power.start) as fleet:
            await fleet.statistics()
            power.cut()
            await clock.sleep(1.0)
            assert state(fleet) is ReplicaState.RESTARTING

    run(body())


def test_the_pauses_between_restarts_double_and_one_that_keeps_ending_is_retired() -> None:
    async def body() -> None:
        power, words = Power(), list[str]()
        config = ServersConfig(restarts_per_hour=4, first_delay_s=1.0, longest_delay_s=4.0)
        async with kept(power.start, config, say=words.append) as fleet:
            for _ in range(5):
                while power.running is None:
                    await clock.sleep(0.5)
                power.cut()
                await clock.sleep(0.0)
            await clock.sleep(10_000.0)
            assert state(fleet) is ReplicaState.RETIRED
            with pytest.raises(EngineError, match="is not started again"):
                await fleet.replicas[0].statistics()
        assert len(power.starts) == 5
        waits = [round(b - a - 2.0) for a, b in zip(power.starts, power.starts[1:], strict=False)]
        assert waits == [1, 2, 4, 4]
        assert "too often" in words[-1]

    run(body())


def test_a_restart_that_fails_is_an_end_like_any_other() -> None:
    async def body() -> None:
        power, words = Power(fails_at=(2, 3)), list[str]()
        async with kept(power.start, say=words.append) as fleet:
            power.cut()
            await clock.sleep(60.0)
            assert (await fleet.replicas[0].statistics()).replica == "r0"
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
            async with kept(broken):
                pass

    run(body())


def test_the_end_of_the_block_ends_a_wait_for_a_restart() -> None:
    async def body() -> None:
        power = Power()
        async with kept(power.start, ServersConfig(first_delay_s=1000.0, longest_delay_s=1000.0)):
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
    config = ServersConfig(restarts_per_hour=limit, first_delay_s=1.0, longest_delay_s=60.0)
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


def test_a_wedged_server_is_ended_and_started_again_and_what_it_was_doing_goes_on() -> None:
    async def body() -> None:
        power, words = Power(), list[str]()
        async with kept(power.start, ServersConfig(wedged_s=100.0), say=words.append) as fleet:
            await say(fleet)
            assert power.running is not None
            power.running.stuck = True
            await unheard(fleet.replicas[0], 10.0)
            await unheard(fleet.replicas[0], 70.0)
            await clock.sleep(5.0)
            assert len(power.starts) == 1, "it may still come to itself"
            await unheard(fleet.replicas[0], 30.0)
            await clock.sleep(0)
            assert state(fleet) is ReplicaState.RESTARTING
            assert len((await say(fleet)).tokens_T) == 10
        assert len(power.starts) == 2
        assert "it has not said for 115 s how it is (servers.wedged_s = 100)" in words[0]

    run(body())


def test_the_fleet_asks_one_that_does_not_serve_until_its_silence_is_too_long() -> None:
    async def body() -> None:
        power = Power()
        async with kept(power.start, ServersConfig(wedged_s=100.0)) as fleet:
            assert power.running is not None
            power.running.stuck = True
            assert len((await say(fleet)).tokens_T) == 10
            assert 100.0 <= power.starts[1] < 125.0

    run(body())


def test_a_server_that_answers_now_and_then_is_not_wedged() -> None:
    async def body() -> None:
        power = Power()
        async with kept(power.start, ServersConfig(wedged_s=100.0)) as fleet:
            assert power.running is not None
            for _ in range(10):
                power.running.stuck = True
                await unheard(fleet.replicas[0], 60.0)
                power.running.stuck = False
                await fleet.replicas[0].statistics()
        assert len(power.starts) == 1

    run(body())


def test_a_wedged_server_that_is_not_ours_is_left_alone() -> None:
    async def body() -> None:
        power = Power()
        async with kept(power.start, ServersConfig(wedged_s=100.0), ours=False) as fleet:
            assert power.running is not None
            power.running.stuck = True
            for _ in range(3):
                await unheard(fleet.replicas[0], 200.0)
            await clock.sleep(10.0)
        assert len(power.starts) == 1

    run(body())


def test_an_error_of_our_own_after_the_start_ends_at_once_what_lives_on_the_replica() -> None:
    class Broken(Power):
        @asynccontextmanager
        async def start(self, on_end: OnEnd) -> AsyncIterator[EmulatedReplica]:
            async with super().start(on_end) as replica:
                if len(self.starts) > 1:
                    raise RuntimeError("a bug")
                yield replica

    async def body() -> None:
        power = Broken()
        with pytest.raises(RuntimeError, match="a bug"):
            async with kept(power.start):
                power.cut()
                await clock.sleep(1000.0)
        assert clock.now() < 10.0

    run(body())


def test_replicas_may_start_together_in_tasks_of_their_own_and_a_bug_of_one_still_ends_them_all() -> None:
    class Broken(Power):
        @asynccontextmanager
        async def start(self, on_end: OnEnd) -> AsyncIterator[EmulatedReplica]:
            async with super().start(on_end) as replica:
                if len(self.starts) > 1:
                    raise RuntimeError("a bug")
                yield replica

    async def body() -> None:
        powers = [Power(), Broken()]
        with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="a bug")):
            async with AsyncExitStack() as stack:
                restarters = await stack.enter_async_context(asyncio.TaskGroup())
                async with asyncio.TaskGroup() as starts:
                    for power, seat in zip(powers, Fleet(["r0", "r1"]).replicas, strict=True):
                        one = restarting(power.start, seat, ServersConfig(), restarters=restarters)
                        starts.create_task(stack.enter_async_context(one))
                assert clock.now() == 2.0
                powers[1].cut()
                await clock.sleep(1000.0)
        assert clock.now() < 10.0
        assert [power.running for power in powers] == [None, None]

    run(body())


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100), st.booleans()), max_size=30))
def test_silence_is_counted_from_the_first_question_without_an_answer(asked: list[tuple[float, float, bool]]) -> None:
    silence, now = Silence(150.0), 0.0
    since: float | None = None
    for gap, took, answers in asked:
        at = now + gap
        now = at + took
        if answers:
            silence.answered()
            since = None
        else:
            since = at if since is None else since
            assert silence.unanswered(at, now) == (now - since if now - since >= 150.0 else None)
