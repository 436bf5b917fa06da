"""Promises of the publisher: one definite version on every replica, and a record of what it took."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest

from muster import clock
from muster.engine.config import EmulatedEngineConfig
from muster.engine.port import CachePolicy, EngineStatistics, InFlight, Scores, Staged
from muster.errors import ConfigError, PublicationError
from muster.lab.emulated import replies
from muster.lab.emulated.replica import EmulatedReplica
from muster.lab.fakes.engine import FakeRates, FakeReplica, logprobs_of
from muster.lab.faults import ReplicaCall
from muster.publish.config import PublisherConfig
from muster.publish.publisher import Canary, Publisher
from muster.types import Ints, Publication, PublicationRecord, Sampling, Session, Version

TOKENS = np.arange(10, dtype=np.int32)


def publication(number: int, digest: str = "new") -> Publication:
    version = Version(number=number, digest=digest)
    return Publication(version=version, transport="memory", location="fake://x", size_bytes=10, dtype="bfloat16")


def canary(version: Version, *, off_by: float = 0.0) -> Canary:
    return Canary(tokens=TOKENS, temperature=1.0, logprobs_T=logprobs_of(TOKENS, version, 1.0) + np.float32(off_by))


def replica(name: str = "engine0") -> FakeReplica:
    return FakeReplica(name, policy=lambda tokens, session, version: [7] * 50 + [2])


async def publish(
    replicas: list[FakeReplica], number: int = 1, *, off_by: float = 0.0, config: PublisherConfig | None = None
) -> list[PublicationRecord]:
    new = publication(number)
    publisher = Publisher(replicas, config or PublisherConfig())
    return await publisher.publish(new, canary(new.version, off_by=off_by), trained_at=clock.now(), export_s=0.25)


def test_every_replica_serves_the_version_and_the_record_splits_latency_from_pause() -> None:
    async def main() -> tuple[list[PublicationRecord], list[Version]]:
        replicas = [replica("engine0"), replica("engine1")]
        records = await publish(replicas)
        return records, [r.version for r in replicas]

    records, versions = clock.run_virtual(main())
    assert [v.number for v in versions] == [1, 1]
    for record in records:
        assert record.digest_equal
        assert record.export_s == 0.25
        assert record.stage_s == pytest.approx(0.5)
        assert 0 < record.pause_s < record.latency_s
        assert record.canary_difference == 0.0


def test_a_record_says_what_was_fetched_and_what_is_computed_again() -> None:
    async def main(cache: CachePolicy) -> tuple[PublicationRecord, EngineStatistics]:
        one = EmulatedReplica("e", EmulatedEngineConfig(stage_s=1.0, stage_bytes_per_s=100.0, commit_s=0.5))
        request = asyncio.ensure_future(one.generate(TOKENS, Sampling(max_tokens=1000), Session(id="s")))
        await clock.sleep(0.2)
        new = replace(publication(1), size_bytes=400)
        publisher = Publisher([one], PublisherConfig(cache=cache))
        reference = Canary(tokens=TOKENS, temperature=1.0, logprobs_T=replies.logprobs_of(TOKENS, new.version, 1.0))
        (record,) = await publisher.publish(new, reference, trained_at=clock.now() - 2.0, export_s=2.0)
        await request
        return record, await one.statistics()

    record, after = clock.run_virtual(main(CachePolicy.RECOMPUTE))
    assert (record.transfer_s, record.stage_s, record.commit_s) == (4.0, pytest.approx(5.0), pytest.approx(0.5))
    assert record.pause_s >= record.commit_s
    assert record.latency_s == pytest.approx(2.0 + record.stage_s + record.pause_s)
    assert (record.size_bytes, record.held) == (400, 1)
    assert record.recomputed_tokens == after.recomputed_tokens > len(TOKENS)
    record, after = clock.run_virtual(main(CachePolicy.KEEP))
    assert record.recomputed_tokens == after.recomputed_tokens == 0


def test_each_replica_is_charged_for_its_own_staging() -> None:
    async def main() -> list[PublicationRecord]:
        slow = FakeReplica("slow", policy=lambda *_: [2], rates=FakeRates(stage_s=7.0))
        return await publish([replica(), slow])

    assert [r.stage_s for r in clock.run_virtual(main())] == [pytest.approx(0.5), pytest.approx(7.0)]


def test_a_limit_on_bandwidth_makes_staging_longer_and_pauses_no_longer() -> None:
    async def main(limit: float | None) -> PublicationRecord:
        one = EmulatedReplica("e", EmulatedEngineConfig(stage_bytes_per_s=1000.0))
        new = replace(publication(1), size_bytes=2000, max_bytes_per_s=limit)
        reference = Canary(tokens=TOKENS, temperature=1.0, logprobs_T=replies.logprobs_of(TOKENS, new.version, 1.0))
        publisher = Publisher([one], PublisherConfig())
        return (await publisher.publish(new, reference, trained_at=clock.now(), export_s=0.0))[0]

    free, capped = (clock.run_virtual(main(limit)) for limit in (None, 500.0))
    assert (free.transfer_s, capped.transfer_s) == (2.0, 4.0)
    assert capped.stage_s - free.stage_s == pytest.approx(2.0)
    assert capped.pause_s == pytest.approx(free.pause_s)


def test_a_pair_that_a_replica_cannot_do_is_refused_before_the_run_with_its_reason() -> None:
    class Stubborn(FakeReplica):
        def supports(self, in_flight: InFlight, cache: CachePolicy) -> str | None:
            return "held requests pin the cache" if (in_flight, cache) == (InFlight.HOLD, CachePolicy.FLUSH) else None

    stubborn = Stubborn("s", policy=lambda *_: [2])
    with pytest.raises(ConfigError, match=r'in_flight = "hold" with publish.cache = "flush": s cannot: held requests'):
        Publisher([replica(), stubborn], PublisherConfig(cache=CachePolicy.FLUSH))
    Publisher([replica(), stubborn], PublisherConfig(cache=CachePolicy.FLUSH, in_flight=InFlight.ABORT))


def test_a_replica_that_does_not_hold_what_was_published_serves_nothing() -> None:
    """Its digest is another one: a request that was held stays held."""

    class Wrong(FakeReplica):
        async def commit(self, version: Version, cache: CachePolicy) -> Version:
            await super().commit(version, cache)
            return Version(number=version.number, digest="other")

    async def main() -> tuple[bool, int]:
        wrong = Wrong("wrong", policy=lambda *_: [7] * 50 + [2])
        request = asyncio.ensure_future(wrong.generate(TOKENS, Sampling(max_tokens=60), Session(id="s")))
        await clock.sleep(0.2)
        with pytest.raises(PublicationError, match=r"wrong: holds .*other"):
            await publish([wrong])
        await clock.sleep(100.0)
        held = not request.done()
        request.cancel()
        return held, wrong.version.number

    assert clock.run_virtual(main()) == (True, 1)


def test_when_one_replica_cannot_stage_none_commits() -> None:
    async def main() -> list[int]:
        fine, full = replica("fine"), replica("full")
        full.crash("no space left")
        with pytest.raises(PublicationError, match="no space left") as raised:
            await publish([fine, full])
        assert raised.value.evidence["replicas"] == ["full"]
        return [fine.version.number, full.version.number]

    assert clock.run_virtual(main()) == [0, 0]


def test_a_retry_for_a_replica_that_failed_pauses_no_other() -> None:
    async def main() -> tuple[list[PublicationRecord], list[PublicationRecord], list[str]]:
        fine, late = EmulatedReplica("fine"), EmulatedReplica("late")
        new, tolerant = publication(1), PublisherConfig(attempts=1)
        reference = Canary(tokens=TOKENS, temperature=1.0, logprobs_T=replies.logprobs_of(TOKENS, new.version, 1.0))
        publisher = Publisher([fine, late], tolerant)
        late.faults.lose_acknowledgement("commit")
        with pytest.raises(PublicationError, match="late"):
            await publisher.publish(new, reference, trained_at=clock.now(), export_s=0.0)
        await fine.statistics()
        await clock.sleep(10.0)
        records = await publisher.publish(new, reference, trained_at=0.0, export_s=0.0)
        states = [str(i.state) for i in (await fine.statistics()).intervals]
        late.crash()
        late.restart()
        again = await publisher.publish(new, reference, trained_at=0.0, export_s=0.0)
        return records, again, states

    records, again, states = clock.run_virtual(main())
    assert [r.replica for r in records] == ["fine", "late"]
    assert states == ["idle"]
    assert records[0].latency_s < 10.0 < records[1].latency_s, "the record is of when it was delivered"
    assert again[0] == records[0]
    assert again[1].latency_s > records[1].latency_s, "what restarted is published to"


def test_publishing_the_same_version_again_changes_nothing() -> None:
    async def main() -> Version:
        one = replica()
        await publish([one])
        await publish([one])
        return one.version

    assert clock.run_virtual(main()) == Version(number=1, digest="new")


def test_a_canary_that_disagrees_is_an_error_whatever_the_engine_answered() -> None:
    with pytest.raises(PublicationError, match=r"canary differs by 0\.5"):
        clock.run_virtual(publish([replica()], off_by=0.5))


def test_a_score_of_another_length_than_the_canary_is_no_agreement() -> None:
    class Short(FakeReplica):
        async def score(self, tokens: Ints, *, temperature: float) -> Scores:
            return await super().score(tokens[:-1], temperature=temperature)

    with pytest.raises(PublicationError, match="canary differs by inf"):
        clock.run_virtual(publish([Short("engine0", policy=lambda *_: [2])]))


@pytest.mark.parametrize(("transport", "size_bytes"), [("memory", 10), ("direct", 0)])
def test_what_lay_there_already_was_not_carried(transport: Literal["memory", "direct"], size_bytes: int) -> None:
    class Held(FakeReplica):
        async def stage(self, publication: Publication) -> Staged:
            await super().stage(publication)
            return Staged()

    async def main() -> PublicationRecord:
        new, held = replace(publication(1), transport=transport), Held("engine0", policy=lambda *_: [2])
        (record,) = await Publisher([held], PublisherConfig()).publish(
            new, canary(new.version), trained_at=clock.now(), export_s=0.0
        )
        return record

    assert clock.run_virtual(main()).size_bytes == size_bytes


def test_a_stage_that_hangs_has_a_deadline_and_leaves_the_old_version() -> None:
    async def main() -> Version:
        one = replica()
        one.faults.hang("stage")
        with pytest.raises(PublicationError, match="not staged within 5 s"):
            await publish([one], config=PublisherConfig(stage_timeout_s=5))
        return one.version

    assert clock.run_virtual(main()).number == 0


def test_a_commit_that_hangs_has_a_deadline() -> None:
    async def main() -> None:
        one = replica()
        one.faults.hang("commit")
        await publish([one], config=PublisherConfig(commit_timeout_s=5))

    with pytest.raises(PublicationError, match="not committed within 5 s"):
        clock.run_virtual(main())


def test_a_replica_that_dies_is_named() -> None:
    async def main() -> None:
        one = replica()
        one.crash("no power")
        await publish([one])

    with pytest.raises(PublicationError, match="engine0"):
        clock.run_virtual(main())


@pytest.mark.parametrize("in_flight", list(InFlight))
def test_a_request_in_flight_is_labelled_with_the_versions_that_made_its_tokens(in_flight: InFlight) -> None:

    async def main() -> tuple[list[int], str, PublicationRecord]:
        one = replica()
        request = asyncio.ensure_future(
            one.generate(TOKENS, Sampling(max_tokens=60, stop_tokens=(2,)), Session(id="s"))
        )
        await clock.sleep(0.2)
        (record,) = await publish([one], config=PublisherConfig(in_flight=in_flight))
        completion = await request
        return sorted(set(completion.versions_T.tolist())), completion.finish, record

    versions, finish, record = clock.run_virtual(main())
    if in_flight is InFlight.HOLD:
        assert (versions, finish, record.held) == ([0, 1], "stop", 1)
    elif in_flight is InFlight.FINISH:
        assert (versions, finish) == ([0], "stop")
    else:
        assert (versions, finish, record.aborted) == ([0], "abort", 1)


@pytest.mark.parametrize("call", ["stage", "pause", "commit", "resume"])
def test_a_call_whose_answer_was_lost_is_made_again(call: ReplicaCall) -> None:
    async def main() -> Version:
        one = replica()
        one.faults.lose_acknowledgement(call)
        (record,) = await publish([one])
        assert record.digest_equal
        return one.version

    assert clock.run_virtual(main()).number == 1


def test_an_error_waits_for_the_other_replicas_so_that_a_retry_meets_nothing_under_way() -> None:
    async def main() -> tuple[float, int]:
        broken, slow = replica("broken"), FakeReplica("slow", policy=lambda *_: [2], rates=FakeRates(commit_s=20.0))
        asyncio.get_running_loop().call_later(0.52, broken.crash)  # both are staged
        with pytest.raises(PublicationError, match="broken"):
            await publish([broken, slow], config=PublisherConfig(attempts=1))
        return clock.now(), slow.version.number

    took_s, number = clock.run_virtual(main())
    assert number == 1
    assert took_s > 20.0
