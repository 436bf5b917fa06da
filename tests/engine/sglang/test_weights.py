"""New weights at the SGLang adapter, against a double of its server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import tiny_llama as tiny
from engine.sglang.sglang_double import Double
from engine.sglang.sglang_steps import SESSION, begun, check, heard, off, prompt, publish, sampling
from muster import clock
from muster.engine.port import CachePolicy, InFlight
from muster.engine.sglang.replica import SglangReplica
from muster.engine.sglang.wire import label_of
from muster.errors import ConfigError, EngineError, PublicationError
from muster.publish.config import PublisherConfig
from muster.publish.publisher import Canary, Publisher
from muster.types import DeviceState, Publication

pytestmark = pytest.mark.model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.write_model(tmp_path / "model")


@pytest.fixture
def publications(tmp_path: Path) -> list[Publication]:
    """Versions 1 and 2."""
    return [tiny.publish(tmp_path, number, seed=number) for number in (1, 2)]


# --- pairs ---------------------------------------------------------------------------------------------


def test_held_requests_may_keep_their_cache_only_where_steps_do_not_overlap(folder: Path) -> None:
    async def body(replica: SglangReplica, double: Double) -> None:
        refused = {
            (in_flight, cache)
            for in_flight in InFlight
            for cache in CachePolicy
            if replica.supports(in_flight, cache) is not None
        }
        assert refused == {(InFlight.HOLD, CachePolicy.KEEP), (InFlight.HOLD, CachePolicy.SHARE)}
        assert "engine.overlap = false" in str(replica.supports(InFlight.HOLD, CachePolicy.KEEP))

    async def without(replica: SglangReplica, double: Double) -> None:
        assert all(replica.supports(in_flight, cache) is None for in_flight in InFlight for cache in CachePolicy)

    check(folder, body, overlap=True)
    check(folder, without, overlap=False)


def test_an_overlapping_server_would_mislabel_a_token_of_a_request_that_is_held_in_place(
    folder: Path, publications: list[Publication]
) -> None:
    """Reason why that pair is refused: by hand, past the adapter."""

    async def body(replica: SglangReplica, double: Double) -> None:
        request = await begun(replica, double)
        double.scheduler.pause("in_place")
        double.load(_laid(folder.parent, publications[0]))
        double.scheduler.relabel(label_of(publications[0].version))
        double.scheduler.paused = False
        completion = await request
        new = completion.versions_T == 1
        assert off(0, prompt(1), completion)[new][0] < 1e-4  # the first token called new is one of the old weights

    check(folder, body, overlap=True)


def _laid(folder: Path, publication: Publication) -> Path:
    (folder / "laid").mkdir()
    (folder / "laid" / "model.safetensors").symlink_to(publication.location)
    return folder / "laid"


@pytest.mark.parametrize("overlap", [False, True])
def test_a_request_that_is_held_and_recomputed_has_no_token_of_a_wrong_version(
    folder: Path, publications: list[Publication], overlap: bool
) -> None:
    async def body(replica: SglangReplica, double: Double) -> None:
        request = await begun(replica, double)
        await publish(replica, publications[0])
        completion = await request
        old = completion.versions_T == 0
        assert 0 < old.sum() < 300
        assert off(0, prompt(1), completion)[old].max() < 1e-4
        assert off(1, prompt(1), completion)[~old].max() < 1e-4
        statistics = await replica.statistics()
        assert statistics.recomputed_tokens == 40 + old.sum()
        assert statistics.preemptions == 0  # it was put back for the commit, not for want of memory

    check(folder, body, overlap=overlap)


def test_a_commit_that_recomputes_empties_the_cache_and_one_that_keeps_does_not(
    folder: Path, publications: list[Publication]
) -> None:
    async def body(replica: SglangReplica, double: Double) -> None:
        await publish(replica, publications[0], cache=CachePolicy.KEEP)
        await publish(replica, publications[1], cache=CachePolicy.FLUSH)
        assert [update["flush_cache"] for update in heard(double, "/update_weights_from_disk")] == [False, True]
        modes = [pause["mode"] for pause in heard(double, "/pause_generation")]
        assert modes == ["in_place", "in_place", "retract"]

    check(folder, body)


def test_no_request_begins_from_the_cache_of_an_earlier_commit_unless_sharing_is_asked_for(
    folder: Path, publications: list[Publication]
) -> None:
    async def body(replica: SglangReplica, double: Double) -> None:
        salts = []
        for publication, cache in zip(publications, (CachePolicy.KEEP, CachePolicy.SHARE), strict=True):
            await replica.generate(prompt(1), sampling(), SESSION)
            salts.append(heard(double, "/generate")[-1]["cache_salt"])
            await publish(replica, publication, cache=cache)
        await replica.generate(prompt(1), sampling(), SESSION)
        salts.append(heard(double, "/generate")[-1]["cache_salt"])
        assert salts[0] != salts[1] == salts[2]

    check(folder, body)


def test_aborting_takes_no_longer_than_the_step_under_way(folder: Path) -> None:
    """The server's own mode looks again after a second."""

    async def body(replica: SglangReplica, double: Double) -> None:
        request = await begun(replica, double)
        async with clock.timeout(0.9):
            assert (await replica.pause(InFlight.ABORT)).aborted == 1
        kept = await request
        assert kept.finish == "abort"
        assert off(0, prompt(1), kept).max() < 1e-4

    check(folder, body)


# --- proof ---------------------------------------------------------------------------------------------


def test_an_update_that_changes_nothing_is_found_out(folder: Path, publications: list[Publication]) -> None:
    async def body(replica: SglangReplica, double: Double) -> None:
        double.faults.ignores_updates = True
        with pytest.raises(EngineError, match="the update to version 1 changed nothing"):
            await publish(replica, publications[0])
        with pytest.raises(EngineError, match="unknown weights"):
            await replica.statistics()

    check(folder, body)


def test_a_version_that_comes_back_with_other_bytes_is_found_out(folder: Path, publications: list[Publication]) -> None:
    async def body(replica: SglangReplica, double: Double) -> None:
        await publish(replica, publications[0])
        await publish(replica, publications[1])
        double.faults.corrupts = True
        with pytest.raises(EngineError, match="other bytes than when it served version 1 before"):
            await publish(replica, publications[0])

    check(folder, body)


def test_after_an_update_that_broke_off_nothing_is_served_until_one_succeeds(
    folder: Path, publications: list[Publication]
) -> None:
    async def body(replica: SglangReplica, double: Double) -> None:
        held = await begun(replica, double)
        double.faults.breaks_off = True
        with pytest.raises(EngineError, match="Rolling back"):
            await publish(replica, publications[0])
        with pytest.raises(EngineError, match="an update to version 1 has not succeeded"):
            await replica.resume()
        assert not held.done()
        double.faults.breaks_off = False
        await replica.commit(publications[0].version, CachePolicy.RECOMPUTE)
        await replica.resume()
        completion = await held
        assert off(1, prompt(1), completion)[completion.versions_T == 1].max() < 1e-4

    check(folder, body)


def test_an_update_without_an_answer_ends_with_its_deadline_and_may_be_made_again(
    folder: Path, publications: list[Publication]
) -> None:
    async def body(replica: SglangReplica, double: Double) -> None:
        await replica.stage(publications[0])
        await replica.pause(InFlight.HOLD)
        double.faults.deaf = True
        with pytest.raises(EngineError, match="no answer within 1 s"):
            await replica.commit(publications[0].version, CachePolicy.RECOMPUTE)
        double.faults.deaf = False
        assert await replica.commit(publications[0].version, CachePolicy.RECOMPUTE) == publications[0].version
        await replica.resume()

    check(folder, body, control_timeout_s=1.0)


def test_what_unproven_weights_sample_while_a_score_runs_is_kept_back_until_resume(
    folder: Path, publications: list[Publication]
) -> None:
    async def body(replica: SglangReplica, double: Double) -> None:
        request = await begun(replica, double, max_tokens=20)
        await replica.stage(publications[0])
        await replica.pause(InFlight.HOLD)
        await replica.commit(publications[0].version, CachePolicy.RECOMPUTE)
        while double.scheduler.waiting or double.scheduler.running:  # it ends while the server runs for a score
            await replica.score(prompt(2), temperature=0.7)
        assert not request.done()
        await replica.resume()
        assert set((await request).versions_T.tolist()) == {0, 1}

    check(folder, body)


def test_what_withdrawn_weights_sampled_never_leaves(folder: Path, publications: list[Publication]) -> None:
    async def body(replica: SglangReplica, double: Double) -> None:
        request = await begun(replica, double, max_tokens=20)
        for publication in publications:
            await replica.stage(publication)
        await replica.pause(InFlight.HOLD)
        await replica.commit(publications[0].version, CachePolicy.RECOMPUTE)
        while double.scheduler.waiting or double.scheduler.running:
            await replica.score(prompt(2), temperature=0.7)
        await replica.commit(publications[1].version, CachePolicy.RECOMPUTE)  # the canary did not agree
        await replica.resume()
        with pytest.raises(EngineError, match="withdrawn"):
            await request

    check(folder, body)


def test_a_score_that_a_commit_came_between_proves_nothing(folder: Path, publications: list[Publication]) -> None:
    async def body(replica: SglangReplica, double: Double) -> None:
        double.scheduler.paused = True
        score = asyncio.create_task(replica.score(prompt(2), temperature=0.7))
        while not double.scheduler.waiting:
            await clock.sleep(0.002)
        await publish(replica, publications[0])
        with pytest.raises(EngineError, match="the weights have changed"):
            await score

    check(folder, body)


def test_a_pause_that_fails_opens_the_gate_again(folder: Path) -> None:
    async def body(replica: SglangReplica, double: Double) -> None:
        request = await begun(replica, double)
        with pytest.raises(TimeoutError):
            async with clock.timeout(0.05):
                await replica.pause(InFlight.FINISH)
        assert len((await replica.generate(prompt(3), sampling(), SESSION)).tokens_T) == 8
        await request

    check(folder, body)


def test_a_pause_whose_answer_is_lost_leaves_a_server_that_runs(folder: Path) -> None:
    async def body(replica: SglangReplica, double: Double) -> None:
        double.faults.silent = True
        with pytest.raises(TimeoutError):
            async with clock.timeout(0.1):
                await replica.pause(InFlight.HOLD)
        assert not double.is_pause
        async with clock.timeout(10):
            assert len((await replica.generate(prompt(3), sampling(), SESSION)).tokens_T) == 8

    check(folder, body)


def _canary(number: int) -> Canary:
    return Canary(tokens=prompt(9), temperature=0.7, logprobs_T=tiny.reference(number, prompt(9), 0.7))


RECOMPUTING = PublisherConfig(cache=CachePolicy.RECOMPUTE, attempts=1)


def test_a_publisher_proves_what_it_publishes_while_a_request_is_held(
    folder: Path, publications: list[Publication]
) -> None:
    async def body(replica: SglangReplica, double: Double) -> None:
        request = await begun(replica, double)
        publisher = Publisher([replica], RECOMPUTING)
        (record,) = await publisher.publish(publications[0], _canary(1), trained_at=clock.now(), export_s=0.0)
        assert (record.version, record.held, record.digest_equal) == (publications[0].version, 1, True)
        assert record.canary_difference is not None
        assert record.canary_difference < 1e-4
        assert set((await request).versions_T.tolist()) == {0, 1}

    check(folder, body, overlap=True)


def test_where_no_checksum_can_tell_the_canary_does_and_nothing_of_it_is_handed_out(
    folder: Path, publications: list[Publication]
) -> None:
    async def body(replica: SglangReplica, double: Double) -> None:
        request = await begun(replica, double, max_tokens=20)
        double.faults.corrupts = True
        with pytest.raises(PublicationError, match="canary"):
            await Publisher([replica], RECOMPUTING).publish(
                publications[0], _canary(1), trained_at=clock.now(), export_s=0.0
            )
        while double.scheduler.waiting or double.scheduler.running:
            await replica.score(prompt(2), temperature=0.7)
        assert not request.done()
        request.cancel()

    check(folder, body)


def test_a_publisher_that_would_keep_what_may_be_mislabelled_does_not_start(folder: Path) -> None:
    async def body(replica: SglangReplica, double: Double) -> None:
        with pytest.raises(ConfigError, match=r"engine[.]overlap = false"):
            Publisher([replica], PublisherConfig(cache=CachePolicy.KEEP))

    check(folder, body, overlap=True)


def test_intervals_say_when_the_replica_was_paused(folder: Path) -> None:
    async def body(replica: SglangReplica, double: Double) -> None:
        await replica.generate(prompt(1), sampling(), SESSION)
        await replica.pause(InFlight.HOLD)
        await replica.resume()
        states = [interval.state for interval in (await replica.statistics()).intervals]
        assert states == [
            DeviceState.IDLE,
            DeviceState.DECODE,
            DeviceState.IDLE,
            DeviceState.PUBLISH_PAUSE,
            DeviceState.IDLE,
        ]

    check(folder, body)


def test_a_commit_is_made_again_on_a_server_that_was_restarted(folder: Path, publications: list[Publication]) -> None:
    async def body(replica: SglangReplica, double: Double) -> None:
        await publish(replica, publications[0])
        double.scheduler.version = "default"
        with pytest.raises(EngineError, match="not paused"):
            await replica.commit(publications[0].version, CachePolicy.RECOMPUTE)
        await publish(replica, publications[0])
        assert (await replica.statistics()).version == publications[0].version

    check(folder, body)
