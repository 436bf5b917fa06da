from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from muster import clock
from muster.engine.config import EmulatedEngineConfig, RouterConfig
from muster.engine.fleet.fleet import Fleet
from muster.engine.fleet.health import ReplicaState
from muster.engine.port import CachePolicy, InFlight
from muster.engine.timing import EngineTiming
from muster.errors import EngineError
from muster.lab.emulated.replica import EmulatedReplica
from muster.types import Completion, Ints, Publication, Sampling, Session, Version

CONFIG = EmulatedEngineConfig(
    timing=EngineTiming(step_s=0.01, prefill_s=1e-4), max_running=8, kv_capacity_tokens=20_000, vocabulary=1000
)
ONE = Version(number=1, digest="one")


def prompt(seed: int, length: int = 100) -> Ints:
    return np.random.default_rng(seed).integers(3, 1000, length).astype(np.int32)


def replicas(count: int = 2) -> list[EmulatedReplica]:
    return [EmulatedReplica(f"r{i}", CONFIG) for i in range(count)]


async def say(fleet: Fleet, name: str, *, tokens: Ints | None = None, length: int = 10) -> Completion:
    tokens = prompt(1) if tokens is None else tokens
    return await fleet.generate(tokens, Sampling(max_tokens=length), Session(id=name, group="g"))


async def publish(fleet: Fleet, version: Version = ONE) -> None:
    publication = Publication(version=version, transport="memory", location="", size_bytes=0, dtype="float32")
    for member in fleet.replicas:
        await member.stage(publication)
        await member.pause(InFlight.HOLD)
        assert await member.commit(version, CachePolicy.KEEP) == version
        await member.resume()
    fleet.serving(version)


def states(fleet: Fleet) -> dict[str, ReplicaState]:
    return dict(fleet.fleet_statistics().states)


def run(body: Awaitable[None]) -> None:
    async def main() -> None:
        await body

    clock.run_virtual(main())


def test_the_turns_of_a_session_find_their_cache() -> None:
    async def body() -> None:
        fleet = Fleet(replicas(4))
        for name in ("a", "b", "c", "d", "e"):
            tokens = prompt(ord(name))
            first = await say(fleet, name, tokens=tokens)
            longer = np.concatenate([tokens, first.tokens_T, prompt(3, 30)])
            second = await say(fleet, name, tokens=longer)
            assert second.replica == first.replica
            assert second.cached_tokens >= 96

    run(body())


def test_a_replica_that_dies_in_mid_request_is_replaced_and_the_turn_is_answered_once() -> None:
    async def body() -> None:
        members = replicas(2)
        fleet = Fleet(members)
        request = asyncio.create_task(say(fleet, "a", length=500))
        await clock.sleep(1.0)
        members[0].crash()
        completion = await request
        assert completion.replica == "r1"
        assert len(completion.tokens_T) == 500
        assert states(fleet)["r1"] is ReplicaState.HEALTHY
        assert states(fleet)["r0"] is not ReplicaState.HEALTHY

    run(body())


def test_one_dead_replica_among_several_does_not_stop_the_others() -> None:
    async def body() -> None:
        members = replicas(3)
        members[1].crash()
        fleet = Fleet(members)
        completions = await asyncio.gather(*[say(fleet, f"s{i}", tokens=prompt(i)) for i in range(12)])
        assert {c.replica for c in completions} == {"r0", "r2"}

    run(body())


def test_a_request_without_an_answer_goes_elsewhere_after_its_deadline() -> None:
    async def body() -> None:
        members = replicas(2)
        members[0].faults.hang("generate")
        fleet = Fleet(members, RouterConfig(request_timeout_s=20.0))
        completion = await say(fleet, "a")
        assert completion.replica == "r1"
        assert 20.0 <= clock.now() < 25.0
        assert completion.queue_s >= 20.0
        assert states(fleet)["r0"] is ReplicaState.HEALTHY, "it was asked, and answered"

    run(body())


def test_a_lost_answer_is_asked_for_again_and_counts_once() -> None:
    async def body() -> None:
        members = replicas(1)
        members[0].faults.lose_acknowledgement("generate")
        fleet = Fleet(members)
        completion = await say(fleet, "a")
        assert len(completion.tokens_T) == 10
        assert fleet.fleet_statistics().running == 0

    run(body())


def test_requests_of_a_replica_that_is_given_up_move_at_once() -> None:
    async def body() -> None:
        members = replicas(2)
        fleet = Fleet(members)
        await say(fleet, "warm-up", tokens=prompt(9))
        members[0].faults.hang("generate")
        request = asyncio.create_task(say(fleet, "a"))
        await clock.sleep(1.0)
        fleet.replicas[0].restarts("its process ended")
        assert (await request).replica == "r1"
        assert clock.now() < 5.0

    run(body())


def test_a_prompt_that_no_replica_takes_is_refused_at_once_and_blames_nobody() -> None:
    async def body() -> None:
        fleet = Fleet(replicas(2))
        with pytest.raises(EngineError, match="token_ids"):
            await say(fleet, "a", tokens=prompt(1, 5000))
        await say(fleet, "b")
        assert set(states(fleet).values()) == {ReplicaState.HEALTHY}

    run(body())


def test_without_any_replica_a_call_waits_and_then_names_each_replicas_state() -> None:
    async def body() -> None:
        members = replicas(2)
        fleet = Fleet(members, RouterConfig(wait_s=60.0))
        await say(fleet, "a")
        for member in members:
            member.crash("power")
        with pytest.raises(EngineError, match=r"r0 is dead.*power.*r1 is dead"):
            await say(fleet, "b")
        assert 60.0 <= clock.now() <= 70.0
        assert fleet.fleet_statistics().waiting == 0

    run(body())


def test_a_call_goes_on_as_soon_as_a_replica_is_back() -> None:
    async def body() -> None:
        members = replicas(1)
        fleet = Fleet(members)
        await publish(fleet)
        members[0].crash()
        request = asyncio.create_task(say(fleet, "a"))
        await clock.sleep(30.0)
        members[0].restart()
        await clock.sleep(5.0)
        assert states(fleet)["r0"] is ReplicaState.STALE
        assert not request.done()
        await publish(fleet)
        completion = await request
        assert set(completion.versions_T.tolist()) == {1}

    run(body())


def test_a_replica_with_old_weights_serves_nothing() -> None:
    async def body() -> None:
        members = replicas(2)
        fleet = Fleet(members)
        await publish(fleet)
        members[0].crash()
        members[0].restart()  # it answers, with version 0
        completions = [await say(fleet, f"s{i}") for i in range(6)]
        assert {v for c in completions for v in c.versions_T.tolist()} == {1}
        await fleet.replicas[0].statistics()
        assert states(fleet)["r0"] is ReplicaState.STALE

    run(body())


class Reverting(EmulatedReplica):
    """Goes back to old weights without failing once."""

    def revert(self) -> None:
        self.engine.core.updates.version = Version(number=0, digest="initial")


def test_tokens_of_old_weights_are_refused_even_if_nothing_failed() -> None:
    async def body() -> None:
        members = [Reverting("r0", CONFIG), Reverting("r1", CONFIG)]
        fleet = Fleet(members)
        await publish(fleet)
        members[0].revert()
        completions = await asyncio.gather(*[say(fleet, f"s{i}", tokens=prompt(i)) for i in range(8)])
        assert {v for c in completions for v in c.versions_T.tolist()} == {1}
        assert states(fleet)["r0"] is ReplicaState.STALE

    run(body())


def test_while_a_publication_is_under_way_old_and_new_version_both_serve() -> None:
    async def body() -> None:
        fleet = Fleet(replicas(2))
        await publish(fleet)
        two = Publication(
            version=Version(number=2, digest="two"), transport="memory", location="", size_bytes=0, dtype="float32"
        )
        for member in fleet.replicas:
            await member.stage(two)
        first = fleet.replicas[0]
        await first.pause(InFlight.HOLD)
        await first.commit(two.version, CachePolicy.KEEP)
        await first.resume()
        for member in fleet.replicas:
            await member.statistics()
        assert set(states(fleet).values()) == {ReplicaState.HEALTHY}

    run(body())


def test_an_abort_is_handed_to_the_caller_who_goes_on_from_the_kept_tokens() -> None:
    async def body() -> None:
        fleet = Fleet(replicas(1))
        request = asyncio.create_task(say(fleet, "a", length=500))
        await clock.sleep(1.0)
        await fleet.replicas[0].pause(InFlight.ABORT)
        completion = await request
        assert completion.finish == "abort"
        assert 0 < len(completion.tokens_T) < 500

    run(body())


def test_a_retired_replica_finishes_what_it_has_and_gets_no_more() -> None:
    async def body() -> None:
        fleet = Fleet(replicas(2))
        request = asyncio.create_task(say(fleet, "a", length=100))
        await clock.sleep(0.1)
        fleet.retire("r0")
        assert fleet.draining("r0") == 1
        assert {(await say(fleet, f"s{i}")).replica for i in range(4)} == {"r1"}
        assert (await request).replica == "r0"
        assert fleet.draining("r0") == 0

    run(body())


def test_more_contexts_than_fit_wait_in_the_fleet_and_all_are_served() -> None:
    async def body() -> None:
        fleet = Fleet(replicas(1), RouterConfig(hold_s=5.0))

        async def session(number: int) -> None:
            tokens = prompt(number, 2000)
            for _ in range(4):
                completion = await say(fleet, f"s{number}", tokens=tokens)
                tokens = np.concatenate([tokens, completion.tokens_T, prompt(number, 100)])
                await clock.sleep(1.0)
            fleet.release(Session(id=f"s{number}", group="g"))

        await asyncio.gather(*[session(number) for number in range(30)])
        statistics = await fleet.statistics()
        uncached = statistics.prompt_tokens - statistics.cached_tokens
        assert uncached < 1.2 * 30 * (2000 + 3 * 112), "nobody's past was computed twice"
        assert fleet.fleet_statistics().sessions == 0

    run(body())


def test_a_thousand_cancelled_calls_leave_nothing_behind() -> None:
    async def body() -> None:
        members = replicas(2)
        fleet = Fleet(members)
        calls = [asyncio.create_task(say(fleet, f"s{i}", tokens=prompt(i, 1500), length=400)) for i in range(1000)]
        await clock.sleep(3.0)
        assert fleet.fleet_statistics().waiting > 500
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        for number in range(1000):
            fleet.release(Session(id=f"s{number}", group="g"))
        await clock.sleep(1.0)
        left = fleet.fleet_statistics()
        assert (left.sessions, left.running, left.waiting) == (0, 0, 0)
        for member in members:
            assert (await member.statistics()).running == 0
        assert len(asyncio.all_tasks()) == 1

    run(body())


def test_release_is_idempotent_and_knows_no_stranger() -> None:
    async def body() -> None:
        fleet = Fleet(replicas(1))
        await say(fleet, "a")
        for _ in range(2):
            fleet.release(Session(id="a", group="g"))
        fleet.release(Session(id="stranger"))
        assert fleet.fleet_statistics().sessions == 0

    run(body())


def test_device_intervals_read_while_asking_are_not_lost() -> None:
    async def body() -> None:
        fleet = Fleet(replicas(1))
        await say(fleet, "a")
        await fleet.statistics()
        intervals = (await fleet.replicas[0].statistics()).intervals
        assert intervals[0].start == 0.0
        assert all(left.end == right.start for left, right in pairwise(intervals))

    run(body())


def test_the_first_to_answer_does_not_get_everything() -> None:
    class Slow(EmulatedReplica):
        async def statistics(self) -> Any:
            await clock.sleep(3.0)
            return await super().statistics()

    async def body() -> None:
        fleet = Fleet([EmulatedReplica("r0", CONFIG), Slow("r1", CONFIG)])
        completions = await asyncio.gather(*[say(fleet, f"s{i}", tokens=prompt(i)) for i in range(8)])
        names = [c.replica for c in completions]
        assert abs(names.count("r0") - names.count("r1")) <= 4

    run(body())


def test_nothing_is_asked_when_nobody_calls() -> None:
    async def body() -> None:
        members = replicas(1)
        fleet = Fleet(members)
        await say(fleet, "a")
        members[0].crash()
        call = asyncio.create_task(say(fleet, "b"))
        await clock.sleep(20.0)
        call.cancel()
        with suppress(asyncio.CancelledError):
            await call
        await clock.sleep(10.0)
        assert len(asyncio.all_tasks()) == 1

    run(body())


def test_a_version_that_was_committed_and_not_proven_serves_nobody() -> None:
    async def body() -> None:
        fleet = Fleet(replicas(2))
        await publish(fleet)
        two = Version(number=2, digest="two")
        for member in fleet.replicas:
            await member.stage(Publication(version=two, transport="memory", location="", size_bytes=0, dtype="float32"))
            await member.pause(InFlight.HOLD)
            await member.commit(two, CachePolicy.KEEP)
        held = asyncio.create_task(say(fleet, "held"))
        await clock.sleep(1.0)
        await fleet.replicas[1].resume()  # the other one's canary failed
        fleet.serving(two)
        assert (await held).replica == "r1"
        assert states(fleet) == {"r0": ReplicaState.STALE, "r1": ReplicaState.HEALTHY}
        await fleet.replicas[0].statistics()
        assert states(fleet)["r0"] is ReplicaState.STALE, "that it says the right version proves nothing"
        await publish(fleet, Version(number=3, digest="three"))
        await fleet.replicas[0].statistics()
        assert set(states(fleet).values()) == {ReplicaState.HEALTHY}

    run(body())


def test_a_replica_whose_statistics_fail_gets_no_more_turns() -> None:
    async def body() -> None:
        members = replicas(2)
        fleet = Fleet(members)
        await say(fleet, "a")
        members[0].crash()
        for _ in range(3):
            with pytest.raises(EngineError):
                await fleet.replicas[0].statistics()
        assert states(fleet)["r0"] is ReplicaState.DEAD

    run(body())
