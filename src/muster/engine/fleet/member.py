"""A member of a fleet: the replica that is behind one name, if any is now, and what its answers have shown.

    restarter ─► serves(server) … restarts(why) … serves(server) … retires(why)
    generate ─► server ─► Completion ─► healthy         statistics, commit, …: passed on, and what they say is heard
                   └─► EngineError, no answer, old weights ─► suspect ─► `ask` ─► healthy, stale, or at last dead
    commit ─► held, not proven ─► resume ─► proven      the publisher resumes when digest and canary are right

Law: implements `engine.port.Replica`, so that whoever uses it lets the fleet hear what is said, and nobody else passes
the port on. While no server is there every call fails at once and says why. A version is right when it is the one to be
served and was proven here. What a request had sampled when its replica failed goes with the error.
Device intervals that were read while asking are kept for the next reader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace

from muster import clock
from muster.engine.fleet.health import Health
from muster.engine.pieces import Pieces
from muster.engine.port import CachePolicy, DeviceInterval, EngineStatistics, InFlight, Pause, Replica, Scores, Staged
from muster.engine.servers.running import RunningServer
from muster.errors import EngineError
from muster.types import Completion, Ints, Publication, Sampling, Session, Version

_Supports = Callable[[InFlight, CachePolicy], str | None]


class Member:
    """Implements `engine.port.Replica`, and is the `Seat` of a restarter."""

    def __init__(self, replica: Replica | str, changed: Callable[[Member], None]) -> None:
        """replica: one that is there for good, or a name for servers to come. changed: called when its health is
        another one."""
        self.name = replica if isinstance(replica, str) else replica.name
        self._server: RunningServer | str = "was not started yet"  # or why there is none
        self._supports: _Supports = lambda in_flight, cache: "it was not started yet"
        if not isinstance(replica, str):
            self.serves(RunningServer(replica))
        self.health = Health()
        self.limits: EngineStatistics | None = None  # its last answer, for capacity and memory
        self.why = ""  # it does not serve
        self._changed = changed
        self._expected: Version | None = None  # None: any will do
        self._coming: Version | None = None  # is being published to it: right as well, until it was delivered
        self._unproven: Version | None = None  # was to be committed, and not found right since
        self._intervals: tuple[DeviceInterval, ...] = ()
        self._deadlines: dict[int, asyncio.Timeout] = {}  # of the requests that it has
        self._requests = 0

    # --- the server that is behind it ------------------------------------------------------------------

    def serves(self, server: RunningServer) -> None:
        """This one is there now. Its health is what it was, until it answers."""
        self._server = server
        self._supports = server.replica.supports

    def restarts(self, why: str) -> None:
        """Its server ended, and another one is being started: no turns until that answers with the right version."""
        self._server = f"is being started again: {why}"
        self.change(lambda health: health.restarts())

    def retires(self, why: str) -> None:
        """Its server ended, and none will be started."""
        self._server = f"is not started again: {why}"
        self.change(lambda health: health.retire())

    def _present(self) -> RunningServer:
        if isinstance(self._server, str):
            raise EngineError(f"{self.name} {self._server}")
        return self._server

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
        """Expect a version that every serving replica got. One that holds it and could not prove it serves no more."""
        self._expected, self._coming = version, None
        if self._unproven == version:
            self.why = f" (holds version {version.number}, which it could not prove)"
            self.change(lambda health: health.answered(right=False))

    async def ask(self, timeout_s: float) -> None:
        """Check the replica's health. Never raises."""
        try:
            async with clock.timeout(timeout_s):
                await self.look()
        except TimeoutError:
            self._failed(f"no answer within {timeout_s:g} s")
        except EngineError as error:
            self._failed(str(error))

    async def look(self) -> EngineStatistics:
        """Fetch its statistics; the device intervals in it are kept for `statistics`. Raises `EngineError`."""
        answer = await self._present().statistics()
        self._intervals += answer.intervals
        self._heard(answer)
        return replace(answer, intervals=())

    def _heard(self, answer: EngineStatistics) -> None:
        self.limits = answer
        right = self._expected is None or answer.version in (self._expected, self._coming)
        if not right:
            self.why = f" (holds version {answer.version.number}, to be served is {self._expected})"
        elif answer.version == self._unproven:
            if self._coming is not None:
                return  # it is being proven: nothing is known yet
            right = False
            self.why = f" (holds version {answer.version.number}, which it could not prove)"
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
        pieces = Pieces()
        try:
            try:
                async with (
                    clock.timeout(timeout_s) as self._deadlines[number],
                    aclosing(self._present().stream(tokens, sampling, session)) as stream,
                ):
                    async for piece in stream:
                        pieces.add(piece)
            finally:
                del self._deadlines[number]
        except TimeoutError:
            gone = f"is {self.health.state}{self.why}" if self.health.gone else None
            reason = gone or f"no answer within {timeout_s:g} s"
            if gone is None:
                self._failed(reason)
            raise EngineError(f"{self.name}: {reason}", kept=_current(pieces.kept, expected)) from None
        except EngineError as error:
            if not is_refusal(error):
                self._failed(str(error))
            raise EngineError(str(error), error.evidence, kept=_current(pieces.kept, expected)) from None
        completion = _current(pieces.completion, expected)
        if completion is None:
            self._failed("its tokens are of old weights")
            raise EngineError(f"{self.name}: its tokens are of older weights than version {expected}")
        return completion

    # --- the port, passed on --------------------------------------------------------------------------

    async def generate(self, tokens: Ints, sampling: Sampling, session: Session) -> Completion:
        return await self._present().replica.generate(tokens, sampling, session)

    async def score(self, tokens: Ints, *, temperature: float) -> Scores:
        return await self._present().replica.score(tokens, temperature=temperature)

    async def statistics(self) -> EngineStatistics:
        try:
            answer = await self._present().statistics()
        except EngineError as error:
            self._failed(str(error))
            raise
        self._heard(answer)
        intervals, self._intervals = self._intervals, ()
        return replace(answer, intervals=intervals + answer.intervals)

    def supports(self, in_flight: InFlight, cache: CachePolicy) -> str | None:
        return self._supports(in_flight, cache)  # of the last server, where none is there: it never changes

    async def stage(self, publication: Publication) -> Staged:
        self._coming = publication.version
        return await self._present().replica.stage(publication)

    async def pause(self, in_flight: InFlight) -> Pause:
        return await self._present().replica.pause(in_flight)

    async def commit(self, version: Version, cache: CachePolicy) -> Version:
        self._unproven = version  # before its answer, which may be lost
        return await self._present().replica.commit(version, cache)

    async def resume(self) -> None:
        """Resume, since whoever committed has found that the weights are right."""
        await self._present().replica.resume()
        self._unproven = None


def is_refusal(error: EngineError) -> bool:
    """The request is wrong, not the replica: any other one would say the same."""
    return error.evidence.get("status") in range(400, 500)


def _current(completion: Completion | None, expected: Version | None) -> Completion | None:
    """None if its newest token is of older weights than those that were to serve when it began."""
    if completion is None or expected is None or not len(completion.versions_T):
        return completion
    return completion if completion.versions_T[-1] >= expected.number else None
