"""The emulated engine on a loop: determinism, faults, and thousands of requests at once."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import numpy as np
import pytest

from lab.emulated.books import config, prompt
from muster import clock
from muster.engine.port import CachePolicy, InFlight
from muster.errors import EngineError, UserError
from muster.lab.emulated.presets import preset
from muster.lab.emulated.replica import EmulatedReplica
from muster.lab.faults import INITIAL
from muster.types import Completion, Ints, Publication, Sampling, Session, Version

PUBLISHED = Publication(
    version=Version(number=1, digest="one"), transport="memory", location="", size_bytes=0, dtype="bfloat16"
)


def ask(replica: EmulatedReplica, name: str, length: int = 20, new: int = 10) -> asyncio.Task[Completion]:
    call = replica.generate(prompt(length), Sampling(max_tokens=new), Session(id=name))
    return asyncio.ensure_future(call)


async def publish(replica: EmulatedReplica) -> None:
    await replica.stage(PUBLISHED)
    await replica.pause(InFlight.HOLD)
    assert await replica.commit(PUBLISHED.version, CachePolicy.KEEP) == PUBLISHED.version
    await replica.resume()


def test_a_crash_fails_whatever_waits_for_the_replica_at_once() -> None:
    async def main() -> None:
        replica = EmulatedReplica("r", config())
        calls = [
            ask(replica, "a", 20, 100),
            asyncio.ensure_future(replica.stage(PUBLISHED)),
            asyncio.ensure_future(replica.pause(InFlight.FINISH)),
            asyncio.ensure_future(replica.score(prompt(100), temperature=1.0)),
        ]
        await clock.sleep(0.01)
        replica.crash("out of memory")
        at = clock.now()
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(outcome, EngineError)
            assert "out of memory" in str(outcome)
        assert clock.now() == at

    clock.run_virtual(main())


def test_a_restarted_replica_serves_nothing_until_a_commit() -> None:
    async def main() -> None:
        replica = EmulatedReplica("r", config())
        await publish(replica)
        replica.crash()
        replica.restart()
        with pytest.raises(EngineError, match="stale"):
            await ask(replica, "a")
        assert (await replica.statistics()).version == INITIAL
        await publish(replica)
        assert (await ask(replica, "a")).versions_T.tolist() == [1] * 10

    clock.run_virtual(main())


def test_a_lost_acknowledgement_did_its_work_and_a_hanging_call_never_answers() -> None:
    async def main() -> None:
        replica = EmulatedReplica("r", config())
        replica.faults.lose_acknowledgement("stage")
        with pytest.raises(EngineError, match="broke before the answer to stage"):
            await replica.stage(PUBLISHED)
        await replica.pause(InFlight.HOLD)
        assert await replica.commit(PUBLISHED.version, CachePolicy.KEEP) == PUBLISHED.version
        replica.faults.hang("resume")
        with pytest.raises(TimeoutError):
            async with clock.timeout(1e6):
                await replica.resume()
        await replica.resume()

    clock.run_virtual(main())


def test_a_policy_that_raises_reaches_whoever_waits() -> None:
    def policy(tokens: Ints, session: Session, version: Version) -> list[int]:
        if session.id == "b":
            raise KeyError("no such turn")
        return [5] * 100

    async def main() -> None:
        complaints: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context["message"]))
        replica = EmulatedReplica("r", config(), policy=policy)
        outcomes = await asyncio.gather(ask(replica, "a"), ask(replica, "b"), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [KeyError, KeyError]
        assert len(complaints) == 1

    clock.run_virtual(main())


def test_a_cancelled_request_leaves_the_batch_at_the_end_of_the_step() -> None:
    async def main() -> None:
        replica = EmulatedReplica("r", config())
        leaving, staying = ask(replica, "a", 20, 90), ask(replica, "b", 30, 20)
        await clock.sleep(0.1)
        leaving.cancel()
        with suppress(asyncio.CancelledError):
            await leaving
        await clock.sleep(0.05)
        assert (await replica.statistics()).running == 1
        assert len((await staying).tokens_T) == 20

    clock.run_virtual(main())


def test_an_id_in_use_is_refused_and_aborting_it_twice_is_once() -> None:
    async def main() -> None:
        engine = EmulatedReplica("r", config()).engine
        calls = [
            asyncio.ensure_future(engine.generate("same", prompt(20), Sampling(max_tokens=90), Session(id="a")))
            for _ in range(2)
        ]
        await clock.sleep(0.1)
        with pytest.raises(UserError, match="request_id 'same' is in use"):
            await calls[1]
        assert await engine.abort(["same", "same", "unknown"]) == 1
        assert (await calls[0]).finish == "abort"

    clock.run_virtual(main())


def test_the_time_of_a_publication_is_staging_beside_serving_and_a_short_pause() -> None:
    async def main() -> None:
        replica = EmulatedReplica("r", config(stage_s=2.0, stage_bytes_per_s=1e9, commit_s=0.25))
        request = ask(replica, "a", 20, 100)
        big = Publication(version=PUBLISHED.version, transport="memory", location="", size_bytes=10**9, dtype="bf16")
        await replica.stage(big)
        assert clock.now() == pytest.approx(3.0)
        assert request.done()
        await replica.pause(InFlight.HOLD)
        await replica.commit(big.version, CachePolicy.KEEP)
        assert clock.now() == pytest.approx(3.25)

    clock.run_virtual(main())


def test_log_probabilities_that_nobody_reads_are_zero_in_replies_and_scores() -> None:
    async def main() -> None:
        replica = EmulatedReplica("r", config(logprobs=False))
        completion = await ask(replica, "a")
        assert completion.logprobs_T.tolist() == [0.0] * 10
        assert not (await replica.score(prompt(30), temperature=1.0)).logprobs_T.any()

    clock.run_virtual(main())


async def busy_hour(seed: int) -> list[tuple[float, int, float]]:
    """Sessions of several turns with pauses, aborts and a publication in between: when each reply ended."""
    replica = EmulatedReplica("r", preset("a100-qwen-7b").model_copy(update={"kv_capacity_tokens": 40_000}))
    ended: list[tuple[float, int, float]] = []

    async def session(index: int) -> None:
        rng = np.random.default_rng((seed, index))
        tokens = np.concatenate([prompt(500, index // 4), prompt(20, index)])
        for _ in range(6):
            call = replica.generate(tokens, Sampling(max_tokens=int(rng.integers(1, 400))), Session(id=str(index)))
            completion = await call
            ended.append((clock.now(), completion.cached_tokens, float(completion.logprobs_T.sum())))
            tokens = np.concatenate([tokens, completion.tokens_T, prompt(300, int(rng.integers(1000)))])
            await clock.sleep(float(rng.exponential(2.0)))

    async def publisher() -> None:
        await clock.sleep(10)
        await publish(replica)

    await asyncio.gather(publisher(), *(session(index) for index in range(40)))
    assert replica.engine.core.preemptions > 0, "memory was short"
    return ended


def test_the_same_seed_gives_the_same_times_to_the_last_bit() -> None:
    first, again, other = (clock.run_virtual(busy_hour(seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_a_thousand_requests_at_once_cost_a_few_timers_each() -> None:
    """Not one for each of the 200,000 tokens."""

    async def main() -> int:
        replica = EmulatedReplica("r", preset("h100-llama-8b").model_copy(update={"max_running": 1000}))
        steps = 0
        finish = replica.engine._step

        def counted() -> None:
            nonlocal steps
            steps += 1
            finish()

        replica.engine._step = counted
        await asyncio.gather(*(ask(replica, str(i), 100, 100 + i % 200) for i in range(1000)))
        return steps

    assert clock.run_virtual(main()) <= 250
