"""Several replicas as one engine.

    generate ─► router: placed, or waits ─► replica ─► Completion
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count

from muster import clock
from muster.engine.port import EngineStatistics, Replica, Scores
from muster.engine.router import Placed, Router, RouterConfig
from muster.errors import EngineError
from muster.types import Completion, Ints, Sampling, Session, Version

_DEFAULT = RouterConfig()


class Fleet:
    """Implements `engine.port.Engine`.

    Example:
        fleet = Fleet([EmulatedReplica(f"r{i}", preset("h100-llama-8b")) for i in range(4)])
        completion = await fleet.generate(tokens, Sampling(max_tokens=200), Session(id="t1", group="g1"))
        fleet.release(Session(id="t1", group="g1"))
    """

    def __init__(self, replicas: Sequence[Replica], config: RouterConfig = _DEFAULT) -> None:
        self.replicas = tuple(replicas)
        self._by_name = {r.name: r for r in replicas}
        self._router = Router(config)
        self._config = config
        self._tickets = count()
        self._placed: dict[int, asyncio.Future[str]] = {}
        for replica in replicas:
            self._router.join(replica.name, kv_capacity_tokens=1 << 40, capacity=1 << 20, now=clock.now())

    async def generate(self, tokens: Ints, sampling: Sampling, session: Session) -> Completion:
        ticket = next(self._tickets)
        place = self._placed[ticket] = asyncio.get_running_loop().create_future()
        self._tell(
            self._router.request(
                ticket,
                session.id,
                group=session.group,
                tokens=len(tokens),
                reply_tokens=sampling.max_tokens,
                now=clock.now(),
            )
        )
        replica = self._by_name[await place]
        length, cached = len(tokens), 0
        try:
            async with clock.timeout(self._config.request_timeout_s):
                completion = await replica.generate(tokens, sampling, session)
            length, cached = length + len(completion.tokens_T), completion.cached_tokens
        except TimeoutError:
            raise EngineError(f"{replica.name}: no answer within {self._config.request_timeout_s:g} s") from None
        finally:
            self._tell(self._router.ended(ticket, tokens=length, cached_tokens=cached, now=clock.now()))
        return completion

    def release(self, session: Session) -> None:
        """The session has ended, however. Idempotent."""
        self._tell(self._router.released(session.id, clock.now()))

    def serving(self, version: Version | None) -> None:
        """This version must be served from now on; None: one is being delivered."""

    async def score(self, tokens: Ints, *, temperature: float) -> Scores:
        return await self.replicas[0].score(tokens, temperature=temperature)

    async def statistics(self) -> EngineStatistics:
        return await self.replicas[0].statistics()

    def _tell(self, placed: list[Placed]) -> None:
        for p in placed:
            self._placed.pop(p.ticket).set_result(p.replica)
