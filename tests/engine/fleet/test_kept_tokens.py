"""Tokens kept from a replica that failed in a turn: the beginning of the answer, not sampled again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from muster import clock
from muster.engine.config import EmulatedEngineConfig, RouterConfig
from muster.engine.fleet.fleet import Fleet
from muster.engine.pieces import Piece, after
from muster.engine.port import CachePolicy, InFlight
from muster.engine.timing import EngineTiming
from muster.errors import EngineError
from muster.lab.emulated.replica import EmulatedReplica
from muster.lab.emulated.replies import logprobs_of
from muster.lab.faults import INITIAL
from muster.types import Completion, Ints, Publication, Sampling, Session, Version

CONFIG = EmulatedEngineConfig(
    timing=EngineTiming(step_s=0.01, prefill_s=1e-4), max_running=8, kv_capacity_tokens=20_000, vocabulary=1000
)
ONE = Version(number=1, digest="one")
PROMPT = np.random.default_rng(1).integers(3, 1000, 100).astype(np.int32)


async def say(fleet: Fleet, name: str, *, length: int = 10) -> Completion:
    return await fleet.generate(PROMPT, Sampling(max_tokens=length), Session(id=name, group="g"))


def run(body: Awaitable[None]) -> None:
    async def main() -> None:
        await body

    clock.run_virtual(main())


class Streamed(EmulatedReplica):
    """Says every second what it has sampled, and after `dumb` pieces nothing more, nor that it is done."""

    dumb = 10**9

    async def stream(self, tokens: Ints, sampling: Sampling, session: Session) -> AsyncGenerator[Piece]:
        answer = asyncio.ensure_future(self.generate(tokens, sampling, session))
        sent = pieces = 0
        try:
            while not answer.done():
                with suppress(TimeoutError):
                    async with clock.timeout(1.0):
                        await asyncio.shield(answer)
                if pieces == self.dumb:
                    await asyncio.Event().wait()
                new = await self.engine.progress("0", sent) if not answer.done() else after(answer.result(), sent)
                if new is not None:
                    sent, pieces = sent + len(new.tokens_T), pieces + 1
                    yield Piece(completion=new, last=answer.done())
        finally:
            answer.cancel()


def exact(tokens: Ints, completion: Completion, version: Version = INITIAL) -> None:
    """Its log-probabilities are those of `version` for the whole sequence."""
    sequence = np.concatenate([tokens, completion.tokens_T])
    expected = logprobs_of(sequence, version, 1.0)[len(tokens) :]
    np.testing.assert_array_equal(completion.logprobs_T, expected)
    assert set(completion.versions_T.tolist()) == {version.number}


def test_a_turn_goes_on_elsewhere_after_the_tokens_that_its_dead_replica_had_said() -> None:
    async def body() -> None:
        members = [Streamed("r0", CONFIG), Streamed("r1", CONFIG)]
        fleet = Fleet(members)
        request = asyncio.create_task(say(fleet, "a", length=500))
        await clock.sleep(3.5)
        members[0].crash()
        completion = await request
        assert (completion.replica, completion.finish, len(completion.tokens_T)) == ("r1", "length", 500)
        exact(PROMPT, completion)
        again = (await fleet.replicas[1].statistics()).generated_tokens
        assert 180 <= again <= 220, "three seconds of a hundred tokens each were kept"
        assert fleet.fleet_statistics().running == 0

    run(body())


def test_what_a_replica_said_before_it_fell_silent_is_kept_when_it_is_given_up() -> None:
    async def body() -> None:
        members = [Streamed("r0", CONFIG), Streamed("r1", CONFIG)]
        members[0].dumb = 2
        fleet = Fleet(members, RouterConfig(request_timeout_s=30.0))
        completion = await say(fleet, "a", length=500)
        assert (completion.replica, len(completion.tokens_T)) == ("r1", 500)
        exact(PROMPT, completion)
        assert (await fleet.replicas[1].statistics()).generated_tokens <= 320

    run(body())


def test_a_reply_that_was_said_to_its_end_needs_no_second_replica() -> None:
    class Broken(Streamed):
        async def stream(self, tokens: Ints, sampling: Sampling, session: Session) -> AsyncGenerator[Piece]:
            whole = await self.generate(tokens, sampling, session)
            yield Piece(completion=replace(whole, finish="abort"), last=False)
            raise EngineError("the stream broke off")

    async def body() -> None:
        fleet = Fleet([Broken("r0", CONFIG), EmulatedReplica("r1", CONFIG)])
        whole = await say(fleet, "a", length=20)
        assert (whole.replica, whole.finish, len(whole.tokens_T)) == ("r0", "length", 20)
        stop = int(whole.tokens_T[7])
        fleet = Fleet([Broken("r0", CONFIG), EmulatedReplica("r1", CONFIG)])
        sampling = Sampling(max_tokens=20, stop_tokens=(stop,))
        stopped = await fleet.generate(PROMPT, sampling, Session(id="a", group="g"))
        assert (stopped.replica, stopped.finish, stopped.tokens_T[-1]) == ("r0", "stop", stop)

    run(body())


def test_what_old_weights_said_is_not_kept() -> None:
    class Old(Streamed):
        async def stream(self, tokens: Ints, sampling: Sampling, session: Session) -> AsyncGenerator[Piece]:
            said = await EmulatedReplica("old", CONFIG).generate(tokens, Sampling(max_tokens=5), session)
            yield Piece(completion=said, last=False)
            raise EngineError("the stream broke off")

    async def body() -> None:
        fleet = Fleet([Old("r0", CONFIG), EmulatedReplica("r1", CONFIG)])
        one = Publication(version=ONE, transport="memory", location="", size_bytes=0, dtype="float32")
        for member in fleet.replicas:
            await member.stage(one)
            await member.pause(InFlight.HOLD)
            await member.commit(ONE, CachePolicy.KEEP)
            await member.resume()
        fleet.serving(ONE)
        exact(PROMPT, await say(fleet, "a"), ONE)

    run(body())


def test_the_last_error_of_a_turn_that_nobody_can_end_carries_what_was_said() -> None:
    async def body() -> None:
        member = Streamed("r0", CONFIG)
        fleet = Fleet([member], RouterConfig(attempts=1))
        request = asyncio.create_task(say(fleet, "a", length=500))
        await clock.sleep(2.5)
        member.crash()
        with pytest.raises(EngineError) as caught:
            await request
        assert caught.value.kept is not None
        assert len(caught.value.kept.tokens_T) >= 150

    run(body())
