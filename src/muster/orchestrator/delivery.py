"""Delivery: the trainer's weights on every replica, and kept there.

    trainer.export ─► publisher ─(deadline missed: again)─► every replica serves the version
                          ▲          │          └─(still missed, by some only: lost, and passed over)
                          │          └─(by all: the version before is published again, and the run stops)
            a replica that restarted holds other weights: `replica_stale` ─► what was delivered is published again

Law: only the train loop delivers, so that no two deliveries overlap and none exports in the middle of a step. Until a
version is delivered the replicas serve the one before it. One that is lost serves nothing until it answers again, holds
the version, and so is no longer lost. While none answers the run waits for the first to come back, as a server that is
started again does; after `patience_s` it stops. What was delivered last is kept, for those that come back and for going
back, until the next version was delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from muster import clock
from muster.engine.port import EngineStatistics
from muster.errors import EngineError, PublicationError
from muster.journal import EventRow, Journal
from muster.publish.publisher import Canary, Publisher
from muster.trainer.port import Trainer
from muster.types import Ints, Publication, PublicationRecord, Version

_STORAGE_PAUSE_S = 5.0
"""Between two tries to write what is to be published."""

_LOOK_S = 1.0
"""Between two looks at replicas of which none answers."""


class Delivery:
    """Delivery of the trainer's weights to every replica.

    Example: `records = await delivery.deliver(step, trained_at=clock.now())`
    """

    def __init__(
        self,
        *,
        journal: Journal,
        trainer: Trainer,
        publisher: Publisher,
        retire: Callable[[Publication], None],
        canary: Ints,
        temperature: float,
        attempts: int,
        patience_s: float,
        serves: Callable[[Version | None], None] = lambda version: None,
    ) -> None:
        """patience_s: how long no replica may answer. serves: told which version the replicas must hold; None while
        they change.
        """
        self._journal = journal
        self._trainer = trainer
        self._publisher = publisher
        self._retire = retire
        self._canary = canary
        self._temperature = temperature
        self._attempts = attempts
        self._patience_s = patience_s
        self._serves = serves
        self._lost: dict[str, str] = {}  # replica -> why
        self._silent_since: float | None = None  # all of them
        self._delivered: tuple[Publication, Canary] | None = None  # the last one
        self.serving: Version | None = None  # on every replica, when it was last delivered
        self.replica_stale = False  # a replica was seen with other weights than those

    @property
    def silent(self) -> bool:
        """No replica answered when they were looked at last."""
        return self._silent_since is not None

    async def deliver(self, number: int, *, trained_at: float) -> list[PublicationRecord]:
        """Make the trainer's weights serve as version `number`: export them, unless they were delivered before.

        Raises `PublicationError` when no replica took them; then every one is back on the version before, or lost.
        """
        before, self.serving = self.serving, None
        self._serves(None)
        if self._delivered is not None and self._delivered[0].version.number == number:
            return await self._serve(*self._delivered, trained_at, export_s=0.0)
        try:
            publication, export_s = await self._exported(number)
            (logprobs_T,) = await self._trainer.score([self._canary], temperature=self._temperature)
        except PublicationError:
            self._now_serves(before)
            raise
        canary = Canary(tokens=self._canary, temperature=self._temperature, logprobs_T=logprobs_T)
        try:
            records = await self._serve(publication, canary, trained_at, export_s)
        except BaseException as error:
            self._retire(publication)
            if isinstance(error, PublicationError):
                await self._roll_back(publication.version)
            raise
        self.close()
        self._delivered = publication, canary
        return records

    def close(self) -> None:
        """Nothing is delivered any more, or something newer was."""
        if self._delivered is not None:
            self._retire(self._delivered[0])
            self._delivered = None

    def look(
        self, statistics: Sequence[EngineStatistics], unanswered: Mapping[str, EngineError], *, asked: Version | None
    ) -> bool:
        """Whether a replica is stale. `asked`: what was serving when the statistics were asked for; while a
        delivery is under way (None), or was since, they say nothing. Raises `EngineError` when no replica has answered
        for too long.
        """
        for name, error in unanswered.items():
            self._lose(name, str(error))
        if not statistics:
            self._silent_since = clock.now() if self._silent_since is None else self._silent_since
            if clock.now() >= self._silent_since + self._patience_s:
                raise next(iter(unanswered.values()))
            return self.replica_stale
        self._silent_since = None
        if asked is not None and asked is self.serving:
            self.replica_stale = self.replica_stale or any(s.version != asked for s in statistics)
            for s in statistics:
                self._lost.pop(s.replica, None)  # it answers: it serves the version, or is delivered to
        return self.replica_stale

    async def _exported(self, number: int) -> tuple[Publication, float]:
        """The publication, and how long the try took that made it: storage that was full may have room again."""
        for left in reversed(range(self._attempts)):
            exporting = clock.now()
            try:
                publication = await self._trainer.export(number)
            except PublicationError as error:
                self._journal.record(EventRow(at=clock.now(), kind="export_failed", message=str(error)))
                if not left:
                    raise
                await clock.sleep(_STORAGE_PAUSE_S)
            else:
                return publication, clock.now() - exporting
        raise AssertionError("the last try returns or raises")

    async def _serve(
        self, publication: Publication, canary: Canary, trained_at: float, export_s: float
    ) -> list[PublicationRecord]:
        records = await self._published(publication, canary, trained_at, export_s)
        self.replica_stale = False
        self._now_serves(publication.version)
        return records

    async def _roll_back(self, refused: Version) -> None:
        """No replica proved `refused`, and any of them may hold it: all get what was delivered before."""
        if self._delivered is None or self._all_lost():
            return
        publication, canary = self._delivered
        try:
            await self._serve(publication, canary, clock.now(), export_s=0.0)
        except PublicationError:
            return  # it is in the record, and nothing serves
        message = f"version {refused.number} was not taken; back on version {publication.version.number}"
        self._journal.record(EventRow(at=clock.now(), kind="rolled_back", message=message))

    def _now_serves(self, version: Version | None) -> None:
        self.serving = version
        self._serves(version)

    async def _published(
        self, publication: Publication, canary: Canary, trained_at: float, export_s: float
    ) -> list[PublicationRecord]:
        tries = self._attempts
        while True:
            if self._all_lost():
                await self._wait_for_one()
            try:
                return await self._publisher.publish(
                    publication, canary, trained_at=trained_at, export_s=export_s, without=self._lost
                )
            except PublicationError as error:
                self._journal.record(EventRow(at=clock.now(), kind="publish_failed", message=str(error)))
                tries -= 1
                if tries > 0:
                    continue
                failed = error.evidence["replicas"]
                if not set(self._publisher.names) - set(failed) - set(self._lost):
                    if await self._publisher.answering():
                        raise
                    tries = self._attempts  # for whoever comes back
                for name in failed:
                    self._lose(name, str(error))

    def _all_lost(self) -> bool:
        return not set(self._publisher.names) - set(self._lost)

    async def _wait_for_one(self) -> None:
        """All are lost: wait until one answers; whoever does is not lost any more. Raises `PublicationError`."""
        until = clock.now() + self._patience_s
        while not (answering := await self._publisher.answering()):
            if clock.now() >= until:
                raise PublicationError(
                    f"no replica answers, for {self._patience_s:g} s: " + "; ".join(self._lost.values())
                )
            await clock.sleep(_LOOK_S)
        for name in answering:
            self._lost.pop(name, None)

    def _lose(self, name: str, why: str) -> None:
        if name not in self._lost:
            self._lost[name] = why
            self._journal.record(EventRow(at=clock.now(), kind="replica_lost", message=f"{name}: {why}"))
