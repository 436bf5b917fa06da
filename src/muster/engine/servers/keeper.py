"""A replica whose server is started again when it ends, and ended when it is wedged.

    start ─► serves ─ends─► patience ─► wait ─► start …       the fleet is told: restarting
               │   ▲           └─► too often ─► retired       …                 retired, for good
               │   └ asked again and again how it is, and silent for `wedged_s`: its end
               └ every answer ─► silent no more

Law: whoever calls meets one replica with one name, whichever process is behind it; while there is none every call fails
at once and says why. A new process holds the weights it started from: it serves nothing until the present version was
delivered to it, as to any replica that is found with other weights. The keeper delivers nothing, and asks nothing:
whoever has a fleet asks, most of all for a replica that does not serve.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from muster import clock
from muster.engine.config import KeeperConfig
from muster.engine.pieces import Piece, pieces_of
from muster.engine.port import CachePolicy, EngineStatistics, InFlight, Pause, Replica, Scores, Staged
from muster.errors import EngineError, MusterError
from muster.types import Completion, Ints, Publication, Sampling, Session, Version

OnEnd = Callable[[str], None]
Start = Callable[[OnEnd], AbstractAsyncContextManager[Replica]]
"""Starts a server and yields its replica when it is ready; calls what it is given with the server's last words, if that
ends by itself. Raises a `MusterError` when it does not get ready."""

_HOUR_S = 3600.0


class Patience:
    """Whether and when to start again. Pure.

    Example: `Patience(KeeperConfig()).ended(now=0.0)` gives 1.0
    """

    def __init__(self, config: KeeperConfig) -> None:
        self._config = config
        self._ends: list[float] = []

    def ended(self, now: float) -> float | None:
        """It ended: seconds until it is started again; None: never."""
        self._ends = [at for at in self._ends if at > now - _HOUR_S] + [now]
        if len(self._ends) > self._config.restarts_per_hour:
            return None
        return min(self._config.longest_delay_s, self._config.first_delay_s * 2.0 ** (len(self._ends) - 1))


class Silence:
    """How long a server has not answered, counted from the first question that it left open. Pure.

    Example: `s = Silence(300.0); s.unanswered(0.0, 10.0); s.unanswered(295.0, 305.0)` gives None, then 305.0
    """

    def __init__(self, wedged_s: float) -> None:
        """wedged_s: so much of it is too much."""
        self._wedged_s = wedged_s
        self._since: float | None = None

    def answered(self) -> None:
        self._since = None

    def unanswered(self, asked: float, now: float) -> float | None:
        """A question of time `asked` failed, or was given up now: seconds of silence if they are too many."""
        if self._since is None:
            self._since = asked
        silent_s = now - self._since
        return silent_s if silent_s >= self._wedged_s else None


class Told(Protocol):
    """Who wants to know, such as a `Fleet`."""

    def restarting(self, name: str) -> None: ...

    def retire(self, name: str) -> None: ...


class KeptReplica:
    """Implements `engine.port.Replica` and `engine.pieces.Streaming`; `keep` makes it."""

    def __init__(self, name: str, wedged_s: float) -> None:
        """wedged_s: of silence, after which its server is ended."""
        self.name = name
        self._wedged_s = wedged_s
        self._silence = Silence(wedged_s)
        self._end: OnEnd = lambda words: None  # of the server that serves
        self._inner: Replica | None = None
        self._last: Replica | None = None  # to ask what never changes
        self._why = "was not started yet"
        self._told: Told | None = None

    def report_to(self, told: Told) -> None:
        """Tell of every restart from now on."""
        self._told = told

    def serves(self, inner: Replica, end: OnEnd) -> None:
        """end: to be told why this server must end."""
        self._inner = self._last = inner
        self._silence, self._end = Silence(self._wedged_s), end

    def restarts(self, why: str) -> None:
        self._inner, self._why = None, f"is being started again: {why}"
        if self._told is not None:
            self._told.restarting(self.name)

    def retires(self, why: str) -> None:
        self._inner, self._why = None, f"is not started again: {why}"
        if self._told is not None:
            self._told.retire(self.name)

    # --- the port, passed on --------------------------------------------------------------------------

    async def generate(self, tokens: Ints, sampling: Sampling, session: Session) -> Completion:
        return await self._present().generate(tokens, sampling, session)

    def stream(self, tokens: Ints, sampling: Sampling, session: Session) -> AsyncGenerator[Piece]:
        return pieces_of(self._present(), tokens, sampling, session)

    async def score(self, tokens: Ints, *, temperature: float) -> Scores:
        return await self._present().score(tokens, temperature=temperature)

    async def statistics(self) -> EngineStatistics:
        """The question by which silence is told: a server that lives answers it at any time, and soon."""
        inner, end, silence, asked = self._present(), self._end, self._silence, clock.now()
        try:
            answer = await inner.statistics()
        except (EngineError, asyncio.CancelledError):  # the fleet gives up a question by cancelling it
            if (silent_s := silence.unanswered(asked, clock.now())) is not None:
                end(f"it has not said for {silent_s:.0f} s how it is (keeper.wedged_s = {self._wedged_s:g})")
            raise
        silence.answered()
        return answer

    def supports(self, in_flight: InFlight, cache: CachePolicy) -> str | None:
        assert self._last is not None, "`keep` yields it when it serves"
        return self._last.supports(in_flight, cache)

    async def stage(self, publication: Publication) -> Staged:
        return await self._present().stage(publication)

    async def pause(self, in_flight: InFlight) -> Pause:
        return await self._present().pause(in_flight)

    async def commit(self, version: Version, cache: CachePolicy) -> Version:
        return await self._present().commit(version, cache)

    async def resume(self) -> None:
        await self._present().resume()

    def _present(self) -> Replica:
        if self._inner is None:
            raise EngineError(f"{self.name} {self._why}")
        return self._inner


@asynccontextmanager
async def keep(
    start: Start,
    name: str,
    config: KeeperConfig,
    *,
    keepers: asyncio.TaskGroup,
    ours: bool = True,
    say: Callable[[str], None] = lambda words: None,
) -> AsyncGenerator[KeptReplica]:
    """A replica that serves, and is kept serving until the block ends.

    keepers: whoever uses the replica lives in it, so that an error of our own, which no restart mends, ends both at
    once. ours: the server is ours to end when it is wedged; one that somebody else runs may come back by itself. say:
    told in words of each end. Raises what `start` raises the first time.

    Example:
        async with (
            asyncio.TaskGroup() as keepers,
            keep(lambda on_end: launch(engine, model, "r0", on_end=on_end), "r0", config, keepers=keepers) as replica,
        ):
            fleet = Fleet([replica])
            replica.report_to(fleet)
    """
    replica = KeptReplica(name, config.wedged_s if ours else math.inf)
    born: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    keeper = keepers.create_task(_keep(start, replica, Patience(config), born, say), name=f"keeper of {name}")
    try:
        await born
        yield replica
    finally:
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)  # what it raised is the group's to raise


async def _keep(
    start: Start, replica: KeptReplica, patience: Patience, born: asyncio.Future[None], say: Callable[[str], None]
) -> None:
    while True:
        try:
            why = await _life(start, replica, born)
        except BaseException as error:
            if not born.done():
                born.set_exception(error)
                return
            if not isinstance(error, MusterError):
                raise
            why = str(error)
        delay_s = patience.ended(clock.now())
        if delay_s is None:
            replica.retires(why)
            say(f"{replica.name} ended too often, and is not started again: {why}")
            return
        replica.restarts(why)
        say(f"{replica.name} is started again in {delay_s:g} s: {why}")
        await clock.sleep(delay_s)


async def _life(start: Start, replica: KeptReplica, born: asyncio.Future[None]) -> str:
    """One server, from its start to its end; its last words, or why it had to end."""
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def hear(words: str) -> None:
        if not ended.done():
            ended.set_result(words)

    async with start(hear) as inner:
        replica.serves(inner, hear)
        if not born.done():
            born.set_result(None)
        why = await ended
        replica.restarts(why)  # before its remains are tidied up
    return why
