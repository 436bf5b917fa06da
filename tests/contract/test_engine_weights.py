"""Contract of every engine replica when its weights change."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from contract.engine_rigs import Rig, T
from contract.engine_steps import Check, agrees, prompt, publish, running, sampling, session, supported, whole
from muster import clock
from muster.engine.port import CachePolicy, InFlight
from muster.errors import EngineError

KEPT = (CachePolicy.KEEP, CachePolicy.SHARE)
POLICIES = pytest.mark.parametrize("cache", list(CachePolicy))


@POLICIES
def test_a_held_request_spans_versions_and_each_token_has_the_one_that_sampled_it(
    check: Check, cache: CachePolicy
) -> None:
    async def body(rig: Rig) -> None:
        supported(rig, InFlight.HOLD, cache)
        before = await rig.replica.statistics()
        old = before.version.number
        request = asyncio.create_task(rig.replica.generate(prompt(10), sampling(400), session("i")))
        await running(rig.replica, 1)
        pause, held = await publish(rig, InFlight.HOLD, cache)
        completion = await request
        assert (pause.held, pause.finished, pause.aborted) == (1, 0, 0)
        assert (completion.finish, len(completion.tokens_T)) == ("length", 400)
        assert set(completion.versions_T.tolist()) == {old, held.number}
        assert (np.diff(completion.versions_T) >= 0).all()
        agrees(rig, prompt(10), completion, old)
        after = await rig.replica.statistics()
        recomputed = after.recomputed_tokens - before.recomputed_tokens
        if cache in KEPT:
            assert (recomputed, completion.recompute_s) == (0, 0.0)
        else:
            agrees(rig, prompt(10), completion, held.number)
            assert recomputed >= 100
            if rig.tells_cost:
                assert completion.recompute_s > 0
                assert recomputed == pause.held_tokens

    check(body)


@POLICIES
def test_a_request_that_a_pause_lets_finish_knows_the_old_weights_only(check: Check, cache: CachePolicy) -> None:
    async def body(rig: Rig) -> None:
        supported(rig, InFlight.FINISH, cache)
        old = (await rig.replica.statistics()).version.number
        request = asyncio.create_task(rig.replica.generate(prompt(17), sampling(200), session("p")))
        await running(rig.replica, 1)
        pause, held = await publish(rig, InFlight.FINISH, cache)
        completion = await request
        assert (pause.held, pause.finished, pause.aborted) == (0, 1, 0)
        assert completion.versions_T.tolist() == [old] * 200
        agrees(rig, prompt(17), completion, old)
        again = await rig.replica.generate(prompt(17), sampling(5), session("p"))
        assert again.versions_T.tolist() == [held.number] * 5

    check(body)


@POLICIES
def test_an_aborted_request_goes_on_from_its_kept_tokens_under_the_new_weights(
    check: Check, cache: CachePolicy
) -> None:
    async def body(rig: Rig) -> None:
        supported(rig, InFlight.ABORT, cache)
        old = (await rig.replica.statistics()).version.number
        request = asyncio.create_task(rig.replica.generate(prompt(18), sampling(400), session("q")))
        await running(rig.replica, 1)
        pause, held = await publish(rig, InFlight.ABORT, cache)
        kept = await request
        assert (pause.held, pause.finished, pause.aborted, kept.finish) == (0, 0, 1, "abort")
        assert set(kept.versions_T.tolist()) == {old}
        agrees(rig, prompt(18), kept, old)
        so_far = np.concatenate([prompt(18), kept.tokens_T])
        rest = await rig.replica.generate(so_far, sampling(400 - len(kept.tokens_T)), session("q"))
        assert len(kept.tokens_T) + len(rest.tokens_T) == 400
        assert set(rest.versions_T.tolist()) == {held.number}
        if cache is not CachePolicy.SHARE:
            assert rest.cached_tokens == 0
            agrees(rig, so_far, rest, held.number)

    check(body)


@POLICIES
def test_a_prompt_cached_under_old_weights_is_computed_anew_unless_sharing_is_asked_for(
    check: Check, cache: CachePolicy
) -> None:
    async def body(rig: Rig) -> None:
        supported(rig, InFlight.HOLD, cache)
        await publish(rig, InFlight.HOLD)  # no other test's cache
        await rig.replica.generate(prompt(11), sampling(), session("j"))
        before = await rig.replica.score(prompt(11), temperature=T)
        _, held = await publish(rig, InFlight.HOLD, cache)
        after = await rig.replica.score(prompt(11), temperature=T)
        completion = await rig.replica.generate(prompt(11), sampling(), session("j"))
        assert completion.versions_T.tolist() == [held.number] * 10
        assert after.version == held != before.version
        assert np.abs(after.logprobs_T - before.logprobs_T).max() > 1e-3
        np.testing.assert_allclose(after.logprobs_T, rig.reference(held.number, prompt(11)), atol=1e-4)
        if cache is CachePolicy.SHARE:
            assert completion.cached_tokens == whole(rig, 99)
        else:
            assert completion.cached_tokens == 0
            agrees(rig, prompt(11), completion, held.number)

    check(body)


def test_a_version_that_comes_back_finds_no_cache_of_its_first_time(check: Check) -> None:
    """A request held over a publication and its roll-back ends with keys and values of both."""

    async def body(rig: Rig) -> None:
        first, second = rig.next_publication(), rig.next_publication()
        await publish(rig, InFlight.HOLD, publication=first)
        request = asyncio.create_task(rig.replica.generate(prompt(19), sampling(400), session("r")))
        await running(rig.replica, 1)
        await publish(rig, InFlight.HOLD, publication=second)
        await running(rig.replica, 1)
        await publish(rig, InFlight.HOLD, publication=first)
        mixed = await request
        number = first.version.number
        assert set(mixed.versions_T.tolist()) == {number, second.version.number}
        so_far = np.concatenate([prompt(19), mixed.tokens_T])
        rest = await rig.replica.generate(so_far, sampling(), session("r"))
        assert rest.cached_tokens == 0
        agrees(rig, so_far, rest, number)

    check(body)


def test_one_long_request_outlives_many_updates_and_ends_for_its_own_reason(check: Check) -> None:
    async def body(rig: Rig) -> None:
        supported(rig, InFlight.HOLD, CachePolicy.RECOMPUTE)
        old = (await rig.replica.statistics()).version.number
        request = asyncio.create_task(rig.replica.generate(prompt(20), sampling(900), session("s")))
        await running(rig.replica, 1)
        published = [old]
        for _ in range(21):
            publication = rig.next_publication()
            pause = await rig.replica.pause(InFlight.HOLD)
            assert pause.held == 1, "it must not end before the updates do"
            await rig.replica.stage(publication)
            held = await rig.replica.commit(publication.version, CachePolicy.RECOMPUTE)
            await rig.replica.resume()
            published.append(held.number)
            await _more_tokens(rig, 3)
        completion = await request
        assert (completion.finish, len(completion.tokens_T)) == ("length", 900)
        assert sorted(set(completion.versions_T.tolist())) == published
        assert (np.diff(completion.versions_T) >= 0).all()
        for version in published:
            agrees(rig, prompt(20), completion, version)

    check(body)


async def _more_tokens(rig: Rig, count: int) -> None:
    """Wait until at least `count` more tokens are generated."""
    goal = await rig.generated_tokens() + count
    while await rig.generated_tokens() < goal:
        await clock.sleep(0.002)


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
