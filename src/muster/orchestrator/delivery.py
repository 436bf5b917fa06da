"""Delivery: the trainer's weights on every replica, and kept there.

    trainer.export ─► publisher ─(deadline missed: again)─► every replica serves the version
                          ▲                     └─(still missed, by some only: lost, and passed over)
            a replica that restarted holds other weights: `strayed` ─► delivered again

Law: only the train loop delivers, so that no two deliveries overlap and none exports in the middle of a step. Until a
version is delivered the replicas serve the one before it. One that is lost serves nothing until it answers again, holds
the version, and so is no longer lost; when all are lost the run stops.
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


class Delivery:
    """Example: `records = await delivery.deliver(step, trained_at=clock.now())`"""

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
        serves: Callable[[Version | None], None] = lambda version: None,
    ) -> None:
        """serves: told which version the replicas must hold; None while they change."""
        self._journal = journal
        self._trainer = trainer
        self._publisher = publisher
        self._retire = retire
        self._canary = canary
        self._temperature = temperature
        self._attempts = attempts
        self._serves = serves
        self._lost: dict[str, str] = {}  # replica -> why
        self.serving: Version | None = None  # on every replica, when it was last delivered
        self.strayed = False  # a replica was seen with other weights than those

    async def deliver(self, number: int, *, trained_at: float) -> list[PublicationRecord]:
        """Export the trainer's weights as version `number` and make them serve. Raises `PublicationError`."""
        self.serving = None
        self._serves(None)
        exporting = clock.now()
        publication = await self._trainer.export(number)
        export_s = clock.now() - exporting
        (logprobs_T,) = await self._trainer.score([self._canary], temperature=self._temperature)
        canary = Canary(tokens=self._canary, temperature=self._temperature, logprobs_T=logprobs_T)
        try:
            records = await self._published(publication, canary, trained_at, export_s)
        finally:
            self._retire(publication)
        self.serving, self.strayed = publication.version, False
        self._serves(self.serving)
        return records

    def look(
        self, statistics: Sequence[EngineStatistics], unanswered: Mapping[str, EngineError], *, asked: Version | None
    ) -> bool:
        """Whether a replica has strayed. `asked`: what was serving when the statistics were asked for; while a
        delivery is under way (None), or was since, they say nothing. Raises `EngineError` when no replica answers.
        """
        for name, error in unanswered.items():
            self._lose(name, str(error))
        if not statistics:
            raise next(iter(unanswered.values()))
        if asked is not None and asked is self.serving:
            self.strayed = self.strayed or any(s.version != asked for s in statistics)
            for s in statistics:
                self._lost.pop(s.replica, None)  # it answers: it serves the version, or is delivered to
        return self.strayed

    async def _published(
        self, publication: Publication, canary: Canary, trained_at: float, export_s: float
    ) -> list[PublicationRecord]:
        tries = self._attempts
        while True:
            try:
                return await self._publisher.publish(
                    publication, canary, trained_at=trained_at, export_s=export_s, without=self._lost
                )
            except PublicationError as error:
                self._journal.record(EventRow(at=clock.now(), kind="publish_failed", message=str(error)))
                tries -= 1
                if tries > 0:
                    continue
                failed = error.evidence.get("replicas", ())
                if not set(self._publisher.names) - set(failed) - set(self._lost):
                    raise
                for name in failed:
                    self._lose(name, str(error))

    def _lose(self, name: str, why: str) -> None:
        if name not in self._lost:
            self._lost[name] = why
            self._journal.record(EventRow(at=clock.now(), kind="replica_lost", message=f"{name}: {why}"))
