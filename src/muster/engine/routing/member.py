"""A replica in a fleet: the replica itself, and what its answers have shown.

    generate ─► inner ─► Completion ─► healthy          statistics, commit, …: passed on, and what they say is heard
                   └─► EngineError, no answer, old weights ─► suspect ─► `ask` ─► healthy, stale, or at last dead

Law: implements `engine.port.Replica`, so that whoever uses it lets the fleet hear what is said. Device intervals that
were read while asking are kept for the next reader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from muster import clock
from muster.engine.port import CachePolicy, DeviceInterval, EngineStatistics, InFlight, Pause, Replica, Scores
from muster.engine.routing.health import Health
from muster.errors import EngineError
from muster.types import Completion, Ints, Publication, Sampling, Session, Version


class Member:
    """Implements `engine.port.Replica`."""

    def __init__(self, inner: Replica, changed: Callable[[Member], None]) -> None:
        """changed: called when its health is another one."""
        self.name = inner.name
        self.inner = inner
        self.health = Health()
        self.limits: EngineStatistics | None = None  # its last answer, for capacity and memory
        self.why = ""  # it does not serve
        self._changed = changed
        self._expected: Version | None = None  # None: any will do
        self._coming: Version | None = None  # is being published to it: right as well, until it was delivered
        self._intervals: tuple[DeviceInterval, ...] = ()
        self._deadlines: dict[int, asyncio.Timeout] = {}  # of the requests that it has
        self._requests = 0

    # --- health ---------------------------------------------------------------------------------------

    def change(self, event: Callable[[Health], None]) -> None:
        """Something happened to it. When it is given up, its requests end at once, and go on elsewhere."""
        before = self.health.state
        event(self.health)
        if self.health.state is before:
            return
        if self.health.serves:
            self.why = ""
        if self.health.gone:
            for deadline in self._deadlines.values():
                if not deadline.expired():
                    deadline.reschedule(asyncio.get_running_loop().time())
        self._changed(self)

    def expect(self, version: Version) -> None:
        """It was delivered to every replica that serves."""
        self._expected, self._coming = version, None

    async def ask(self, timeout_s: float) -> None:
        """How is it? Never raises."""
        try:
            async with clock.timeout(timeout_s):
                await self.look()
        except TimeoutError:
            self._failed(f"no answer within {timeout_s:g} s")
        except EngineError as error:
            self._failed(str(error))

    async def look(self) -> EngineStatistics:
        """Its statistics; the device intervals in it are kept for `statistics`. Raises `EngineError`."""
        answer = await self.inner.statistics()
        self._intervals += answer.intervals
        self._heard(answer)
        return replace(answer, intervals=())

    def _heard(self, answer: EngineStatistics) -> None:
        self.limits = answer
        right = self._expected is None or answer.version in (self._expected, self._coming)
        if not right:
            self.why = f" (holds version {answer.version.number}, to be served is {self._expected})"
        self.change(lambda health: health.answered(right=right))

    def _failed(self, why: str) -> None:
        self.why = f" ({why})"
        self.change(lambda health: health.failed())

    # --- requests -------------------------------------------------------------------------------------

    async def generate_within(
        self, timeout_s: float, tokens: Ints, sampling: Sampling, session: Session, *, expected: Version | None
    ) -> Completion:
        """Raises `EngineError`. expected: older tokens than of this version are refused: its weights are stale."""
        self._requests += 1
        number = self._requests
        try:
            try:
                async with clock.timeout(timeout_s) as self._deadlines[number]:
                    completion = await self.inner.generate(tokens, sampling, session)
            finally:
                del self._deadlines[number]
        except TimeoutError:
            gone = f"is {self.health.state}{self.why}" if self.health.gone else None
            reason = gone or f"no answer within {timeout_s:g} s"
            if gone is None:
                self._failed(reason)
            raise EngineError(f"{self.name}: {reason}") from None
        except EngineError as error:
            if not _refused(error):
                self._failed(str(error))
            raise
        if expected is not None and len(completion.versions_T) and completion.versions_T[-1] < expected.number:
            self._failed("its tokens are of old weights")
            raise EngineError(f"{self.name}: sampled by version {completion.versions_T[-1]}, not {expected.number}")
        return completion

    # --- the port, passed on --------------------------------------------------------------------------

    async def generate(self, tokens: Ints, sampling: Sampling, session: Session) -> Completion:
        return await self.inner.generate(tokens, sampling, session)

    async def score(self, tokens: Ints, *, temperature: float) -> Scores:
        return await self.inner.score(tokens, temperature=temperature)

    async def statistics(self) -> EngineStatistics:
        answer = await self.inner.statistics()
        self._heard(answer)
        intervals, self._intervals = self._intervals, ()
        return replace(answer, intervals=intervals + answer.intervals)

    async def stage(self, publication: Publication) -> None:
        self._coming = publication.version
        await self.inner.stage(publication)

    async def pause(self, in_flight: InFlight) -> Pause:
        return await self.inner.pause(in_flight)

    async def commit(self, version: Version, cache: CachePolicy) -> Version:
        return await self.inner.commit(version, cache)

    async def resume(self) -> None:
        await self.inner.resume()


def _refused(error: EngineError) -> bool:
    """The request is wrong, not the replica."""
    return error.evidence.get("status") in range(400, 500)
