"""A replica whose server is started again when it ends.

    start ─► serves ─ends─► patience ─► wait ─► start …       the fleet is told: restarting
                               └─► too often ─► retired       …                 retired, for good

Law: whoever calls meets one replica with one name, whichever process is behind it; while there is none every call fails
at once and says why. A new process holds the weights it started from: it serves nothing until the present version was
delivered to it, as to any replica that is found with other weights. The keeper delivers nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Protocol

from pydantic import BaseModel, ConfigDict, Field

from muster import clock
from muster.engine.pieces import Piece, pieces_of
from muster.engine.port import CachePolicy, EngineStatistics, InFlight, Pause, Replica, Scores, Staged
from muster.errors import EngineError, MusterError
from muster.types import Completion, Ints, Publication, Sampling, Session, Version

OnEnd = Callable[[str], None]
Start = Callable[[OnEnd], AbstractAsyncContextManager[Replica]]
"""Starts a server and yields its replica when it is ready; calls what it is given with the server's last words, if that
ends by itself. Raises a `MusterError` when it does not get ready."""

_HOUR_S = 3600.0


class KeeperConfig(BaseModel):
    """When a server that ended is started again."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    restarts_per_hour: int = Field(
        default=6, ge=0, description="of one replica; one that ends more often is given up. 0: never start one again"
    )
    first_delay_s: float = Field(default=1.0, ge=0, description="before a restart; doubles with each within an hour")
    longest_delay_s: float = Field(default=60.0, ge=0, description="where the doubling ends")


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


class Told(Protocol):
    """Who wants to know, such as a `Fleet`."""

    def restarting(self, name: str) -> None: ...

    def retire(self, name: str) -> None: ...


class KeptReplica:
    """Implements `engine.port.Replica` and `engine.pieces.Streaming`; `keep` makes it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._inner: Replica | None = None
        self._last: Replica | None = None  # to ask what never changes
        self._why = "was not started yet"
        self._told: Told | None = None

    def report_to(self, told: Told) -> None:
        """Tell of every restart from now on."""
        self._told = told

    def serves(self, inner: Replica) -> None:
        self._inner = self._last = inner

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
        return await self._present().statistics()

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
    start: Start, name: str, config: KeeperConfig, *, say: Callable[[str], None] = lambda words: None
) -> AsyncIterator[KeptReplica]:
    """A replica that serves, and is kept serving until the block ends. say: told in words of each end.

    Raises what `start` raises the first time.

    Example:
        async with keep(lambda on_end: launch(engine, model, "engine0", on_end=on_end), "engine0", config) as replica:
            fleet = Fleet([replica])
            replica.report_to(fleet)
    """
    replica = KeptReplica(name)
    born: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    keeper = asyncio.create_task(_keep(start, replica, Patience(config), born, say), name=f"keeper of {name}")
    try:
        await born
        yield replica
    finally:
        keeper.cancel()
        with suppress(asyncio.CancelledError):
            await keeper


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
    """One server, from its start to its end; its last words."""
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def hear(words: str) -> None:
        if not ended.done():
            ended.set_result(words)

    async with start(hear) as inner:
        replica.serves(inner)
        if not born.done():
            born.set_result(None)
        why = await ended
        replica.restarts(why)  # before its remains are tidied up
    return why
