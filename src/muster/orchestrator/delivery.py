"""Delivery: the trainer's weights on every replica, and kept there.

    trainer.export ─► publisher ─(deadline missed: again)─► every replica serves the version
                          ▲
            a replica that restarted holds other weights: `strayed` ─► delivered again

Law: only the train loop delivers, so that no two deliveries overlap and none exports in the middle of a step. Until a
version is delivered the replicas serve the one before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from muster import clock
from muster.engine.port import EngineStatistics
from muster.errors import PublicationError
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
    ) -> None:
        self._journal = journal
        self._trainer = trainer
        self._publisher = publisher
        self._retire = retire
        self._canary = canary
        self._temperature = temperature
        self._attempts = attempts
        self.serving: Version | None = None  # on every replica, when it was last delivered
        self.strayed = False  # a replica was seen with other weights than those

    async def deliver(self, number: int, *, trained_at: float) -> list[PublicationRecord]:
        """Export the trainer's weights as version `number` and make them serve. Raises `PublicationError`."""
        self.serving = None
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
        return records

    def look(self, statistics: Sequence[EngineStatistics], *, asked: Version | None) -> bool:
        """Whether a replica has strayed. `asked`: what was serving when the statistics were asked for; while a
        delivery is under way (None), or was since, they say nothing."""
        if asked is not None and asked is self.serving:
            self.strayed = self.strayed or any(s.version != asked for s in statistics)
        return self.strayed

    async def _published(
        self, publication: Publication, canary: Canary, trained_at: float, export_s: float
    ) -> list[PublicationRecord]:
        for left in reversed(range(self._attempts)):
            try:
                return await self._publisher.publish(publication, canary, trained_at=trained_at, export_s=export_s)
            except PublicationError as error:
                self._journal.record(EventRow(at=clock.now(), kind="publish_failed", message=str(error)))
                if not left:
                    raise
        raise AssertionError("the last try returns or raises")
