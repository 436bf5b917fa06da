"""What every engine replica keeps, the fake included."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny_llama as tiny
from contract.engine_rigs import EMULATED, VOCABULARY, EmbeddedRig, EmulatedRig, FakeRig, Rig, T, WholeFleet
from muster import clock
from muster.engine.embedded import EmbeddedEngineConfig, launch
from muster.engine.emulated.engine import EmulatedEngine
from muster.engine.emulated.replica import INITIAL, EmulatedReplica
from muster.engine.emulated.serve import serving
from muster.engine.port import CachePolicy, InFlight, Pause, Replica
from muster.engine.vllm import HttpReplica
from muster.errors import EngineError
from muster.types import Completion, DeviceState, Ints, Sampling, Session, Version

Body = Callable[[Rig], Awaitable[None]]
Check = Callable[[Body], None]


CONFIG = EmbeddedEngineConfig(
    dtype="float32", max_streams=8, max_model_len=1024, kv_capacity_tokens=24 * 1024, threads=1, request_timeout_s=60
)


@pytest.fixture(scope="module")
def on_embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Check]:
    """One engine process for all tests; each leaves it serving and idle."""
    folder = tmp_path_factory.mktemp("engine")
    model = tiny.write_model(folder / "model")
    with asyncio.Runner() as runner:
        launched = launch(CONFIG, model, "embedded")
        rig = EmbeddedRig(runner.run(_enter(launched)), folder)
        yield lambda body: runner.run(_awaited(body(rig)))
        runner.run(_awaited(launched.__aexit__(None, None, None)))


@pytest.fixture(params=["fake", "emulated", "emulated over HTTP", "fleet", "embedded"])
def check(request: pytest.FixtureRequest) -> Check:
    async def on_fake(body: Body) -> None:
        await body(FakeRig())

    async def on_emulated(body: Body) -> None:
        await body(EmulatedRig(EmulatedReplica("emulated", EMULATED)))

    async def on_fleet(body: Body) -> None:
        await body(EmulatedRig(WholeFleet([EmulatedReplica(f"emulated{i}", EMULATED) for i in range(2)])))

    async def over_http(body: Body) -> None:
        engine = EmulatedEngine(EMULATED, name="emulated", version=INITIAL)
        async with serving(engine, token="secret") as url, HttpReplica("emulated", url, "secret") as replica:
            await body(EmulatedRig(replica))

    match request.param:
        case "fake":
            return lambda body: clock.run_virtual(on_fake(body))
        case "emulated":
            return lambda body: clock.run_virtual(on_emulated(body))
        case "fleet":
            return lambda body: clock.run_virtual(on_fleet(body))
        case "emulated over HTTP":
            return lambda body: clock.run(over_http(body))
        case _:
            return request.getfixturevalue("on_embedded")


async def _enter(context: Any) -> Any:
    return await context.__aenter__()


async def _awaited(awaitable: Awaitable[None]) -> None:
    await awaitable


def prompt(seed: int, length: int = 100) -> Ints:
    return np.random.default_rng(seed).integers(3, VOCABULARY, length).astype(np.int32)


def sampling(max_tokens: int = 10, **more: Any) -> Sampling:
    return Sampling(temperature=T, max_tokens=max_tokens, seed=1, **more)


def session(name: str) -> Session:
    return Session(id=name)


async def running(replica: Replica, count: int) -> None:
    """Wait until `count` requests run and have been decoding for a while."""
    while (await replica.statistics()).running != count:
        await clock.sleep(0.01)
    await clock.sleep(0.1)


async def publish(rig: Rig, in_flight: InFlight, cache: CachePolicy = CachePolicy.KEEP) -> tuple[Pause, Version]:
    publication = rig.next_publication()
    await rig.replica.stage(publication)
    pause = await rig.replica.pause(in_flight)
    held = await rig.replica.commit(publication.version, cache)
    await rig.replica.resume()
    assert held == publication.version
    return pause, held


def agrees(rig: Rig, tokens: Ints, completion: Completion, version: int) -> None:
    """The completion's log-probabilities are those of `version` for the whole sequence, where it sampled."""
    sequence = np.concatenate([tokens, completion.tokens_T])
    expected = rig.reference(version, sequence)[len(tokens) :]
    made = completion.versions_T == version
    np.testing.assert_allclose(completion.logprobs_T[made], expected[made], atol=1e-4)


def test_every_sampled_token_has_a_log_probability_and_a_version(check: Check) -> None:
    async def body(rig: Rig) -> None:
        version = (await rig.replica.statistics()).version.number
        completion = await rig.replica.generate(prompt(1), sampling(12), session("a"))
        assert completion.finish == "length"
        assert len(completion.tokens_T) == len(completion.logprobs_T) == 12
        assert completion.versions_T.tolist() == [version] * 12
        agrees(rig, prompt(1), completion, version)

    check(body)


def test_a_stop_token_ends_the_completion_and_is_part_of_it(check: Check) -> None:
    async def body(rig: Rig) -> None:
        stops = tuple(range(VOCABULARY))
        completion = await rig.replica.generate(prompt(2), sampling(12, stop_tokens=stops), session("b"))
        assert (completion.finish, len(completion.tokens_T)) == ("stop", 1)

    check(body)


def test_siblings_that_arrive_together_compute_their_prompt_once(check: Check) -> None:
    async def body(rig: Rig) -> None:
        before = await rig.replica.statistics()
        tokens = prompt(3, 200)
        siblings = [rig.replica.generate(tokens, sampling(), Session(id=f"c{i}", group="c")) for i in range(4)]
        completions = await asyncio.gather(*siblings)
        assert sorted(c.cached_tokens for c in completions)[1:] == [199, 199, 199]
        for completion in completions:
            agrees(rig, tokens, completion, before.version.number)
        after = await rig.replica.statistics()
        assert after.prompt_tokens - before.prompt_tokens == 800
        assert after.cached_tokens - before.cached_tokens >= 3 * 199
        assert after.generated_tokens - before.generated_tokens == 40

    check(body)


def test_the_next_turn_of_a_session_starts_from_its_cache(check: Check) -> None:
    async def body(rig: Rig) -> None:
        first = await rig.replica.generate(prompt(4), sampling(), session("d"))
        tokens = np.concatenate([prompt(4), first.tokens_T, prompt(5, 30)])
        second = await rig.replica.generate(tokens, sampling(), session("d"))
        assert second.cached_tokens >= 109
        agrees(rig, tokens, second, int(second.versions_T[0]))

    check(body)


def test_a_held_request_goes_on_after_the_pause(check: Check) -> None:
    async def body(rig: Rig) -> None:
        request = asyncio.create_task(rig.replica.generate(prompt(6), sampling(400), session("e")))
        await running(rig.replica, 1)
        pause = await rig.replica.pause(InFlight.HOLD)
        assert (pause.held, pause.aborted) == (1, 0)
        assert await rig.replica.pause(InFlight.HOLD) == pause
        await clock.sleep(0.3)
        assert not request.done()
        await rig.replica.resume()
        await rig.replica.resume()
        completion = await request
        assert len(completion.tokens_T) == 400
        assert completion.paused_s >= 0.29
        agrees(rig, prompt(6), completion, int(completion.versions_T[0]))

    check(body)


def test_a_finishing_pause_waits_for_what_runs_and_holds_back_what_comes(check: Check) -> None:
    async def body(rig: Rig) -> None:
        request = asyncio.create_task(rig.replica.generate(prompt(7), sampling(300), session("f")))
        await running(rig.replica, 1)
        pausing = asyncio.create_task(rig.replica.pause(InFlight.FINISH))
        await clock.sleep(0.02)
        late = asyncio.create_task(rig.replica.generate(prompt(8), sampling(5), session("g")))
        assert (await pausing).finished == 1
        assert len((await request).tokens_T) == 300
        await clock.sleep(0.1)
        assert not late.done()
        await rig.replica.resume()
        assert len((await late).tokens_T) == 5

    check(body)


def test_an_aborting_pause_hands_back_the_tokens_so_far(check: Check) -> None:
    async def body(rig: Rig) -> None:
        request = asyncio.create_task(rig.replica.generate(prompt(9), sampling(500), session("h")))
        await running(rig.replica, 1)
        assert (await rig.replica.pause(InFlight.ABORT)).aborted == 1
        completion = await request
        await rig.replica.resume()
        assert completion.finish == "abort"
        assert 0 < len(completion.tokens_T) < 500
        agrees(rig, prompt(9), completion, int(completion.versions_T[0]))

    check(body)


@pytest.mark.parametrize("cache", list(CachePolicy))
def test_a_commit_in_mid_request_labels_each_token_with_the_weights_that_sampled_it(
    check: Check, cache: CachePolicy
) -> None:
    async def body(rig: Rig) -> None:
        before = await rig.replica.statistics()
        old = before.version.number
        request = asyncio.create_task(rig.replica.generate(prompt(10), sampling(400), session("i")))
        await running(rig.replica, 1)
        pause, held = await publish(rig, InFlight.HOLD, cache)
        completion = await request
        assert pause.held == 1
        assert set(completion.versions_T.tolist()) == {old, held.number}
        assert (np.diff(completion.versions_T) >= 0).all()
        agrees(rig, prompt(10), completion, old)
        after = await rig.replica.statistics()
        if cache is CachePolicy.RECOMPUTE:
            agrees(rig, prompt(10), completion, held.number)
            assert completion.recompute_s > 0
            assert after.recomputed_tokens - before.recomputed_tokens >= 100
        else:
            assert after.recomputed_tokens == before.recomputed_tokens

    check(body)


def test_no_cached_prefix_survives_a_commit(check: Check) -> None:
    async def body(rig: Rig) -> None:
        await rig.replica.generate(prompt(11), sampling(), session("j"))
        _, held = await publish(rig, InFlight.HOLD)
        completion = await rig.replica.generate(prompt(11), sampling(), session("j"))
        assert completion.cached_tokens == 0
        assert completion.versions_T.tolist() == [held.number] * 10
        agrees(rig, prompt(11), completion, held.number)

    check(body)


def test_a_paused_replica_scores_with_the_weights_just_committed(check: Check) -> None:
    async def body(rig: Rig) -> None:
        publication = rig.next_publication()
        await rig.replica.stage(publication)
        await rig.replica.pause(InFlight.HOLD)
        await rig.replica.commit(publication.version, CachePolicy.KEEP)
        scores = await rig.replica.score(prompt(12), temperature=T)
        await rig.replica.resume()
        assert scores.version == publication.version
        assert scores.logprobs_T[0] == 0
        expected = rig.reference(publication.version.number, prompt(12))
        np.testing.assert_allclose(scores.logprobs_T, expected, atol=1e-4)

    check(body)


def test_staging_and_committing_twice_is_the_same_as_once(check: Check) -> None:
    async def body(rig: Rig) -> None:
        publication = rig.next_publication()
        await rig.replica.stage(publication)
        await rig.replica.stage(publication)
        await rig.replica.pause(InFlight.HOLD)
        for _ in range(2):
            assert await rig.replica.commit(publication.version, CachePolicy.KEEP) == publication.version
        await rig.replica.resume()
        await rig.replica.stage(publication)
        assert await rig.replica.commit(publication.version, CachePolicy.KEEP) == publication.version

    check(body)


def test_a_commit_without_pause_or_without_staging_is_refused(check: Check) -> None:
    async def body(rig: Rig) -> None:
        version = rig.next_publication().version
        with pytest.raises(EngineError, match="paused"):
            await rig.replica.commit(version, CachePolicy.KEEP)
        await rig.replica.pause(InFlight.HOLD)
        with pytest.raises(EngineError, match="not staged"):
            await rig.replica.commit(version, CachePolicy.KEEP)
        await rig.replica.resume()

    check(body)


def test_cancelling_a_request_frees_its_stream(check: Check) -> None:
    async def body(rig: Rig) -> None:
        request = asyncio.create_task(rig.replica.generate(prompt(13), sampling(800), session("k")))
        await running(rig.replica, 1)
        request.cancel()
        with suppress(asyncio.CancelledError):
            await request
        await running(rig.replica, 0)

    check(body)


def test_more_requests_than_streams_wait_their_turn(check: Check) -> None:
    async def body(rig: Rig) -> None:
        requests = [rig.replica.generate(prompt(20 + i), sampling(5), session(f"l{i}")) for i in range(100)]
        completions = await asyncio.gather(*requests)
        assert all(len(c.tokens_T) == 5 for c in completions)
        assert max(c.queue_s for c in completions) > 0

    check(body)


def test_a_prompt_that_does_not_fit_is_refused(check: Check) -> None:
    async def body(rig: Rig) -> None:
        for tokens in (prompt(14, 0), prompt(14, 5000)):
            with pytest.raises(EngineError, match="token_ids"):
                await rig.replica.generate(tokens, sampling(), session("m"))

    check(body)


def test_device_intervals_tell_every_state_without_gap_or_overlap(check: Check) -> None:
    async def body(rig: Rig) -> None:
        await rig.replica.statistics()
        started = clock.now()
        await rig.replica.generate(prompt(15), sampling(20), session("n"))
        await rig.replica.pause(InFlight.HOLD)
        await clock.sleep(0.05)
        await rig.replica.resume()
        intervals = (await rig.replica.statistics()).intervals
        for left, right in pairwise(intervals):
            assert left.end == right.start
            assert left.state != right.state
        assert {DeviceState.DECODE, DeviceState.PUBLISH_PAUSE} <= {i.state for i in intervals}
        assert intervals[0].start <= started + 0.05
        assert intervals[-1].end <= clock.now()

    check(body)


def test_a_dead_replica_fails_pending_and_later_calls_at_once(tmp_path: Path) -> None:
    async def dies(replica: Replica, kill: Callable[[], None]) -> None:
        request = asyncio.create_task(replica.generate(prompt(16), sampling(900), session("o")))
        await running(replica, 1)
        kill()
        async with clock.timeout(2):
            with pytest.raises(EngineError):
                await request
            with pytest.raises(EngineError, match="dead"):
                await replica.score(prompt(16), temperature=T)

    async def on_fake() -> None:
        replica = FakeRig().replica
        await dies(replica, replica.crash)

    async def on_process() -> None:
        async with launch(CONFIG, tiny.write_model(tmp_path / "model"), "dying") as replica:
            (pid,) = _children()
            await dies(replica, lambda: os.kill(pid, signal.SIGKILL))

    async def on_emulated() -> None:
        replica = EmulatedReplica("emulated", EMULATED)
        await dies(replica, replica.crash)

    clock.run_virtual(on_fake())
    clock.run_virtual(on_emulated())
    clock.run(on_process())


def _children() -> set[int]:
    """Engine processes named `dying` that this process started."""
    found: set[int] = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            status = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            if int(status[1]) == os.getpid() and b"dying" in (entry / "cmdline").read_bytes():
                found.add(int(entry.name))
    return found
