"""Watch: what the engines say of themselves, once a second and whenever somebody must know.

    every replica's statistics ─┬► journal: what it did
                                ├► scheduler: how much its cache holds
                                ├► delivery: which weights it has
                                └► one frame of the live view

Law: a replica that does not answer is data for the delivery; that none answers for long ends the run. All are asked at
once: one that hangs holds up the look at the others no longer than its own deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from muster import clock
from muster.engine.port import EngineStatistics
from muster.errors import EngineError
from muster.orchestrator.delivery import Delivery
from muster.orchestrator.parts import Parts
from muster.orchestrator.record import device_rows
from muster.orchestrator.status import Progress
from muster.types import DeviceState


class DeviceWatch:
    """Watch over the engines' devices and the trainer's.

    Example: `await watch.look(step=3, trainer=DeviceState.TRAIN)`

    on_stale: called when a replica holds other weights than were delivered; it serves nothing until it has them.
    """

    def __init__(self, parts: Parts, delivery: Delivery, progress: Progress, *, on_stale: Callable[[], None]) -> None:
        self._p = parts
        self._delivery = delivery
        self._progress = progress
        self._on_stale = on_stale
        self.looked_at = 0.0
        """When the engines were asked last."""

    async def look(self, *, step: int, trainer: DeviceState) -> None:
        """Read the engines into the journal, and show a frame."""
        statistics = await self.look_at_engines()
        self._p.on_status(
            self._progress.status(
                scheduler=self._p.scheduler.statistics(),
                batch_groups=self._p.groups_per_batch,
                stages=self._p.dispatcher.stages(),
                pool=self._p.pool_status(),
                engines=statistics,
                trainer_state=trainer,
                step=step,
            )
        )

    async def look_at_engines(self) -> list[EngineStatistics]:
        """Statistics of the engines that answer. Raises `EngineError` when none has for too long."""
        self.looked_at = clock.now()
        serving = self._delivery.serving
        answered: list[EngineStatistics] = []
        unanswered: dict[str, EngineError] = {}
        asked = [engine.statistics() for engine in self._p.engines]
        for engine, answer in zip(self._p.engines, await asyncio.gather(*asked, return_exceptions=True), strict=True):
            if isinstance(answer, EngineError):
                unanswered[engine.name] = answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                answered.append(answer)
        self._p.journal.record(*device_rows(answered))
        self._p.scheduler.observe(answered, clock.now())
        if self._delivery.look(answered, unanswered, asked=serving):
            self._on_stale()
        return answered
