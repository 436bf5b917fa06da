"""A server that is started again when it ends, and ended when it is wedged.

    start ─► serves ─ends─► patience ─► wait ─► start …       its seat is told: restarts
               │   ▲           └─► too often ─► retired       …                 retires, for good
               │   └ asked again and again how it is, and silent for `wedged_s`: its end
               └ every answer ─► silent no more

Law: one seat with one name, whichever process takes it. A new process holds the weights it started from: it serves
nothing until the present version was delivered to it, as to any replica that is found with other weights. The restarter
delivers nothing, and asks nothing: whoever has a fleet asks, most of all for a replica that does not serve.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from muster import clock
from muster.engine.config import ServersConfig
from muster.engine.port import Replica
from muster.engine.servers.running import OnEnd, RunningServer
from muster.errors import MusterError

Start = Callable[[OnEnd], AbstractAsyncContextManager[Replica]]
"""Starts a server and yields its replica when it is ready; calls what it is given with the server's last words, if that
ends by itself. Raises a `MusterError` when it does not get ready."""

_HOUR_S = 3600.0


class Patience:
    """Decision whether and when to start again. Pure.

    Example: `Patience(ServersConfig()).ended(now=0.0)` gives 1.0
    """

    def __init__(self, config: ServersConfig) -> None:
        self._config = config
        self._ends: list[float] = []

    def ended(self, now: float) -> float | None:
        """Count an end: seconds until it is started again; None: never."""
        self._ends = [at for at in self._ends if at > now - _HOUR_S] + [now]
        if len(self._ends) > self._config.restarts_per_hour:
            return None
        return min(self._config.longest_delay_s, self._config.first_delay_s * 2.0 ** (len(self._ends) - 1))


class Seat(Protocol):
    """A name under which servers come and go, such as a `Member` of a fleet. It is told of each at once."""

    name: str

    def serves(self, server: RunningServer) -> None:
        """It is there from now on, until one of the others is called."""
        ...

    def restarts(self, why: str) -> None:
        """None is there; the next one is on its way."""
        ...

    def retires(self, why: str) -> None:
        """None is there, and none will be."""
        ...


@asynccontextmanager
async def restarting(
    start: Start,
    seat: Seat,
    config: ServersConfig,
    *,
    restarters: asyncio.TaskGroup,
    ours: bool = True,
    say: Callable[[str], None] = lambda words: None,
) -> AsyncGenerator[None]:
    """A server in `seat` when the block begins, and another one whenever it has ended, until the block ends.

    restarters: whoever uses the replica lives in it, so that an error of our own, which no restart mends, ends both at
    once. ours: the server is ours to end when it is wedged; one that somebody else runs may come back by itself. say:
    told in words of each end. Raises what `start` raises the first time.

    Example:
        fleet = Fleet(["r0"])
        (seat,) = fleet.replicas
        async with (
            asyncio.TaskGroup() as restarters,
            restarting(lambda on_end: launch(engine, model, "r0", on_end=on_end), seat, config, restarters=restarters),
        ):
            await fleet.generate(tokens, sampling, session)
    """
    first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    wedged_s = config.wedged_s if ours else math.inf
    restarter = restarters.create_task(
        _restart_forever(start, seat, Patience(config), wedged_s, first, say), name=f"restarter of {seat.name}"
    )
    try:
        await first
        yield
    finally:
        restarter.cancel()
        await asyncio.gather(restarter, return_exceptions=True)  # what it raised is the group's to raise


async def _restart_forever(
    start: Start,
    seat: Seat,
    patience: Patience,
    wedged_s: float,
    first: asyncio.Future[None],
    say: Callable[[str], None],
) -> None:
    while True:
        try:
            why = await _life(start, seat, wedged_s, first)
        except BaseException as error:
            if not first.done():
                first.set_exception(error)
                return
            if not isinstance(error, MusterError):
                raise
            why = str(error)
        delay_s = patience.ended(clock.now())
        if delay_s is None:
            seat.retires(why)
            say(f"{seat.name} ended too often, and is not started again: {why}")
            return
        seat.restarts(why)
        say(f"{seat.name} is started again in {delay_s:g} s: {why}")
        await clock.sleep(delay_s)


async def _life(start: Start, seat: Seat, wedged_s: float, first: asyncio.Future[None]) -> str:
    """One server, from its start to its end; its last words, or why it had to end."""
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def hear(words: str) -> None:
        if not ended.done():
            ended.set_result(words)

    async with start(hear) as replica:
        seat.serves(RunningServer(replica, wedged_s=wedged_s, end=hear))
        if not first.done():
            first.set_result(None)
        why = await ended
        seat.restarts(why)  # before its remains are tidied up
    return why
