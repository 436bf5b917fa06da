from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from muster import clock
from muster.engine.port import Scores
from muster.errors import EngineError, PublicationError
from muster.journal import EventRow, Journal
from muster.lab.fakes.engine import FakeReplica
from muster.lab.fakes.trainer import FakeTrainer
from muster.orchestrator.delivery import Delivery
from muster.publish.config import PublisherConfig
from muster.publish.publisher import Publisher
from muster.types import Ints, Publication, Sampling, Session
from orchestrator.world import World

PATIENCE_S = 60.0


class Garbling(FakeReplica):
    """From version `garbled` on its weights are right by name and digest, and score like noise."""

    garbled = 10**9

    async def score(self, tokens: Ints, *, temperature: float) -> Scores:
        scores = await super().score(tokens, temperature=temperature)
        off = np.float32(1000.0 if self.version.number >= self.garbled else 0.0)
        return replace(scores, logprobs_T=scores.logprobs_T + off)


class Ground:
    """One replica, a trainer, and the delivery between them."""

    def __init__(
        self, *, attempts: int = 3, replicas: int = 1, trainer: Callable[[], FakeTrainer] = FakeTrainer
    ) -> None:
        self.journal = Journal.in_memory(meta={})
        self.replica = Garbling("engine0", policy=lambda *_: [2])
        self.other = Garbling("engine1", policy=lambda *_: [2])
        self.served: list[int | None] = []
        self.retired: list[Publication] = []
        self.delivery = Delivery(
            journal=self.journal,
            trainer=trainer(),
            publisher=Publisher(
                [self.replica, self.other][:replicas], PublisherConfig(canary_tolerance=100.0, stage_timeout_s=5.0)
            ),
            retire=self.retired.append,
            canary=np.arange(6, dtype=np.int32),
            temperature=1.0,
            attempts=attempts,
            patience_s=PATIENCE_S,
            serves=lambda version: self.served.append(version.number if version else None),
        )

    async def stray(self) -> bool:
        asked = self.delivery.serving
        return self.delivery.look([await self.replica.statistics()], {}, asked=asked)


def on(
    play: Callable[[Ground], Awaitable[None]],
    *,
    attempts: int = 3,
    replicas: int = 1,
    trainer: Callable[[], FakeTrainer] = FakeTrainer,
) -> Ground:
    async def main() -> Ground:
        ground = Ground(attempts=attempts, replicas=replicas, trainer=trainer)
        await play(ground)
        return ground

    return clock.run_virtual(main())


def test_a_replica_that_restarted_is_stale_until_it_is_delivered_to_again() -> None:
    async def play(ground: Ground) -> None:
        await ground.delivery.deliver(1, trained_at=clock.now())
        assert not await ground.stray()
        ground.replica.crash()
        ground.replica.restart()
        assert await ground.stray()
        await ground.delivery.deliver(1, trained_at=clock.now())
        assert not await ground.stray()

    on(play)


def test_statistics_from_before_a_delivery_say_nothing_after_it() -> None:
    async def play(ground: Ground) -> None:
        await ground.delivery.deliver(1, trained_at=clock.now())
        asked, old = ground.delivery.serving, await ground.replica.statistics()
        await ground.delivery.deliver(2, trained_at=clock.now())
        assert not ground.delivery.look([old], {}, asked=asked)

    on(play)


def test_a_publication_that_missed_its_deadline_is_tried_again_and_written_down() -> None:
    async def play(ground: Ground) -> None:
        ground.replica.faults.hang("stage")
        (record,) = await ground.delivery.deliver(1, trained_at=clock.now())
        assert record.latency_s > 5.0

    ground = on(play)
    assert [e.kind for e in ground.journal.rows(EventRow)] == ["publish_failed"]


def test_what_was_delivered_is_kept_until_the_next_version_is_and_published_again_without_an_export() -> None:
    async def play(ground: Ground) -> None:
        await ground.delivery.deliver(1, trained_at=clock.now())
        ground.replica.crash()
        ground.replica.restart()
        (record,) = await ground.delivery.deliver(1, trained_at=clock.now())
        assert (record.version.number, record.export_s) == (1, 0.0)
        assert not ground.retired
        await ground.delivery.deliver(2, trained_at=clock.now())
        assert [p.version.number for p in ground.retired] == [1]
        ground.delivery.close()
        ground.delivery.close()
        assert [p.version.number for p in ground.retired] == [1, 2]

    on(play)


def test_a_version_that_no_replica_proves_is_rolled_back_and_all_are_on_the_one_before() -> None:
    async def play(ground: Ground) -> None:
        await ground.delivery.deliver(1, trained_at=clock.now())
        one = ground.delivery.serving
        ground.replica.garbled = ground.other.garbled = 2
        with pytest.raises(PublicationError, match="the canary differs by"):
            await ground.delivery.deliver(2, trained_at=clock.now())
        assert ground.replica.version == ground.other.version == one == ground.delivery.serving
        for replica in (ground.replica, ground.other):  # and serve it
            completion = await replica.generate(np.arange(4, dtype=np.int32), Sampling(max_tokens=1), Session(id="s"))
            assert completion.versions_T.tolist() == [1]

    ground = on(play, replicas=2)
    assert [e.kind for e in ground.journal.rows(EventRow)] == ["publish_failed"] * 3 + ["rolled_back"]
    assert ground.served == [None, 1, None, 1]
    assert [p.version.number for p in ground.retired] == [2]


def test_a_version_that_one_replica_cannot_prove_counts_where_it_was_proven() -> None:
    async def play(ground: Ground) -> None:
        await ground.delivery.deliver(1, trained_at=clock.now())
        ground.other.garbled = 2
        (record,) = await ground.delivery.deliver(2, trained_at=clock.now())
        assert record.replica == "engine0"

    ground = on(play, replicas=2)
    assert ground.served == [None, 1, None, 2]
    assert [e.kind for e in ground.journal.rows(EventRow)][-1] == "replica_lost"


def test_an_export_that_fails_leaves_the_version_before_serving() -> None:
    class Full(FakeTrainer):
        async def export(self, number: int) -> Publication:
            if number == 2:
                raise PublicationError("no space left on device")
            return await super().export(number)

    async def play(ground: Ground) -> None:
        await ground.delivery.deliver(1, trained_at=clock.now())
        with pytest.raises(PublicationError, match="no space left"):
            await ground.delivery.deliver(2, trained_at=clock.now())
        assert ground.delivery.serving is not None
        assert ground.delivery.serving.number == ground.replica.version.number == 1

    assert on(play, trainer=Full).served == [None, 1, None, 1]


def test_an_export_is_tried_again_for_storage_may_have_room_by_then() -> None:
    class FullForAWhile(FakeTrainer):
        left = 2

        async def export(self, number: int) -> Publication:
            self.left -= 1
            if self.left >= 0:
                raise PublicationError("no space left on device")
            return await super().export(number)

    async def play(ground: Ground) -> None:
        (record,) = await ground.delivery.deliver(1, trained_at=clock.now())
        assert ground.replica.version.number == 1
        assert record.export_s < 5.0  # of the try that made it

    ground = on(play, trainer=FullForAWhile)
    assert [e.kind for e in ground.journal.rows(EventRow)] == ["export_failed", "export_failed"]


def test_one_that_fails_every_time_is_an_error_and_still_retired() -> None:
    async def play(ground: Ground) -> None:
        ground.replica.faults.hang("stage")
        with pytest.raises(PublicationError, match="not staged"):
            await ground.delivery.deliver(1, trained_at=clock.now())
        assert len(ground.retired) == 1

    on(play, attempts=1)


def test_a_dead_replica_among_several_is_passed_over_and_gets_the_version_when_it_is_back() -> None:
    async def play(ground: Ground) -> None:
        ground.other.crash()
        (record,) = await ground.delivery.deliver(1, trained_at=clock.now())
        assert record.replica == "engine0"
        (record,) = await ground.delivery.deliver(2, trained_at=clock.now())
        ground.other.restart()
        both = [await ground.replica.statistics(), await ground.other.statistics()]
        assert ground.delivery.look(both, {}, asked=ground.delivery.serving), "what it holds is not what is served"
        assert len(await ground.delivery.deliver(2, trained_at=clock.now())) == 2

    ground = on(play, replicas=2)
    kinds = [row.kind for row in ground.journal.rows(EventRow)]
    assert kinds == ["publish_failed"] * 3 + ["replica_lost"], "once it is known to be dead nobody waits for it"
    assert ground.served == [None, 1, None, 2, None, 2]


def test_one_that_does_not_answer_is_lost_and_none_that_answers_for_too_long_is_an_error() -> None:
    async def play(ground: Ground) -> None:
        await ground.delivery.deliver(1, trained_at=clock.now())
        asked, dead = ground.delivery.serving, EngineError("dead")
        assert not ground.delivery.look([await ground.replica.statistics()], {"engine1": dead}, asked=asked)
        (record,) = await ground.delivery.deliver(2, trained_at=clock.now())
        assert record.replica == "engine0"
        both = {"engine0": dead, "engine1": dead}
        for _ in range(2):
            ground.delivery.look([], both, asked=asked)
            assert ground.delivery.silent
            await clock.sleep(PATIENCE_S - 1)
            assert not ground.delivery.look([await ground.replica.statistics()], {"engine1": dead}, asked=asked)
            assert not ground.delivery.silent
        ground.delivery.look([], both, asked=asked)
        await clock.sleep(PATIENCE_S)
        with pytest.raises(EngineError, match="dead"):
            ground.delivery.look([], both, asked=asked)

    ground = on(play, replicas=2)
    assert {row.kind for row in ground.journal.rows(EventRow)} == {"replica_lost"}


def test_a_version_waits_for_a_replica_when_none_is_there() -> None:
    async def play(ground: Ground) -> None:
        await ground.delivery.deliver(1, trained_at=clock.now())
        ground.replica.crash()
        asyncio.get_running_loop().call_later(PATIENCE_S / 2, ground.replica.restart)
        (record,) = await ground.delivery.deliver(2, trained_at=clock.now())
        assert record.version == ground.replica.version
        assert record.latency_s > PATIENCE_S / 2
        ground.replica.crash()  # and one that is known to be away before is waited for at once
        ground.delivery.look([], {"engine0": EngineError("dead")}, asked=ground.delivery.serving)
        asyncio.get_running_loop().call_later(PATIENCE_S / 2, ground.replica.restart)
        assert len(await ground.delivery.deliver(3, trained_at=clock.now())) == 1

    assert on(play).served == [None, 1, None, 2, None, 3]


def test_a_version_that_nobody_comes_for_is_an_error_once_patience_ends() -> None:
    async def play(ground: Ground) -> None:
        await ground.delivery.deliver(1, trained_at=clock.now())
        ground.replica.crash()
        began = clock.now()
        with pytest.raises(PublicationError, match="no replica answers"):
            await ground.delivery.deliver(2, trained_at=clock.now())
        assert PATIENCE_S <= clock.now() - began < 1.5 * PATIENCE_S  # nobody is there to be rolled back either

    on(play)


def test_when_all_are_lost_a_version_is_delivered_to_those_that_answer_again_and_never_to_nobody() -> None:
    async def play(ground: Ground) -> None:
        await ground.delivery.deliver(1, trained_at=clock.now())
        ground.other.crash()
        await ground.delivery.deliver(2, trained_at=clock.now())
        ground.other.restart()
        answering = [await ground.other.statistics()]
        ground.delivery.look(answering, {"engine0": EngineError("dead")}, asked=None)  # asked while it was delivered
        assert len(await ground.delivery.deliver(3, trained_at=clock.now())) == 2
        ground.other.crash()
        ground.replica.crash()
        with pytest.raises(PublicationError):
            await ground.delivery.deliver(4, trained_at=clock.now())

    on(play, replicas=2)


@pytest.mark.parametrize("away_s", [0.0, 30.0])
def test_a_run_whose_only_replica_restarts_goes_on_with_the_present_weights(tmp_path: Path, away_s: float) -> None:
    world = World(directory=tmp_path, schedule={"infra_alarm_rate": 1.0, "max_attempts": 6})

    async def main() -> bool | None:
        def restart() -> None:
            assert world.engine is not None
            world.engine.crash()
            asyncio.get_running_loop().call_later(away_s, world.engine.restart)

        asyncio.get_running_loop().call_later(4.0, restart)  # while it samples the first batch
        return await world.run()

    assert clock.run_virtual(main()) is True
    with world.journal() as journal:
        assert "republished" in {e.kind for e in journal.rows(EventRow)}
