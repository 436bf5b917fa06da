from __future__ import annotations

import asyncio

import numpy as np
import pytest

from muster import clock
from muster.engine.port import InFlight
from muster.errors import PublicationError
from muster.publish.publisher import Canary, Publisher, PublisherConfig
from muster.sim.fake_engine import Call, FakeRates, FakeReplica, logprobs_of
from muster.types import Publication, PublicationRecord, Sampling, Session, Version

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


def test_a_stage_that_hangs_has_a_deadline_and_leaves_the_old_version() -> None:
    async def main() -> Version:
        one = replica()
        one.hang("stage")
        with pytest.raises(PublicationError, match="not staged within 5 s"):
            await publish([one], config=PublisherConfig(stage_timeout_s=5))
        return one.version

    assert clock.run_virtual(main()).number == 0


def test_a_commit_that_hangs_has_a_deadline() -> None:
    async def main() -> None:
        one = replica()
        one.hang("commit")
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
def test_a_call_whose_answer_was_lost_is_made_again(call: Call) -> None:
    async def main() -> Version:
        one = replica()
        one.lose_acknowledgement(call)
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
