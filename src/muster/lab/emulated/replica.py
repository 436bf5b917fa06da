"""The emulated engine as a replica in this process, with the faults that a simulation injects.

Law: obeys the same contract as every replica. A crashed one fails pending and later calls; a restarted one is stale
and serves nothing until a commit; a hanging call never answers; a lost acknowledgement did its work.
"""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Literal

from muster.engine.config import EmulatedEngineConfig
from muster.engine.port import CachePolicy, EngineStatistics, InFlight, Pause, Scores, Staged
from muster.errors import EngineError, UserError
from muster.lab.emulated.engine import EmulatedEngine
from muster.lab.emulated.replies import Policy
from muster.types import Completion, Ints, Publication, Sampling, Session, Version

Call = Literal["generate", "score", "statistics", "stage", "pause", "commit", "resume"]

INITIAL = Version(number=0, digest="initial")
"""What a replica holds before anything was published to it."""


class EmulatedReplica:
    """Implements `engine.port.Replica`. Needs no process, no closing.

    Prompts are kept, not copied: do not write to them later. A turn costs the same at any length of its context if a
    session's prompts are slices of one array, and the policy's replies too.

    Example:
        replica = EmulatedReplica("r0", preset("h100-llama-8b"))
        completion = await replica.generate(tokens, Sampling(max_tokens=200), Session(id="t1"))
    """

    def __init__(
        self,
        name: str,
        config: EmulatedEngineConfig | None = None,
        *,
        policy: Policy | None = None,
        version: Version = INITIAL,
    ) -> None:
        """policy: a function of prompt, session, version, or a `Script`; None: `max_tokens` made-up tokens."""
        self.name = name
        self.engine = EmulatedEngine(config or EmulatedEngineConfig(), name=name, version=version, policy=policy)
        self._ids = count()
        self._dead: str | None = None
        self._stale = False
        self._hanging: set[Call] = set()
        self._unacknowledged: set[Call] = set()

    # --- faults -------------------------------------------------------------------------------------

    def crash(self, reason: str = "killed") -> None:
        """Every pending and later call fails."""
        self._dead = f"{self.name} is dead: {reason}"
        self.engine.fail(self._dead)

    def restart(self) -> None:
        """Serve again, but nothing before a commit: a restarted replica holds unknown weights."""
        self.engine.restart(INITIAL)
        self._dead, self._stale = None, True

    def hang(self, call: Call) -> None:
        """The next such call never answers (until it is cancelled)."""
        self._hanging.add(call)

    def lose_acknowledgement(self, call: Call) -> None:
        """The next such call does its work and then fails."""
        self._unacknowledged.add(call)

    # --- the port -----------------------------------------------------------------------------------

    async def generate(self, tokens: Ints, sampling: Sampling, session: Session) -> Completion:
        await self._enter("generate")
        if self._stale:
            raise EngineError(f"{self.name} is stale: it has no published weights")
        try:
            completion = await self.engine.generate(str(next(self._ids)), tokens, sampling, session)
        except UserError as error:
            raise EngineError(f"{self.name}: {error}", {"status": 400}) from None
        self._leave("generate")
        return completion

    async def score(self, tokens: Ints, *, temperature: float) -> Scores:
        await self._enter("score")
        try:
            scores = await self.engine.score(tokens, temperature)
        except UserError as error:
            raise EngineError(f"{self.name}: {error}", {"status": 400}) from None
        self._leave("score")
        return scores

    async def statistics(self) -> EngineStatistics:
        await self._enter("statistics")
        statistics = await self.engine.statistics(take_intervals=True)
        self._leave("statistics")
        return statistics

    def supports(self, in_flight: InFlight, cache: CachePolicy) -> str | None:
        return None

    async def stage(self, publication: Publication) -> Staged:
        await self._enter("stage")
        staged = await self.engine.stage(publication)
        self._leave("stage")
        return staged

    async def pause(self, in_flight: InFlight) -> Pause:
        await self._enter("pause")
        pause = await self.engine.pause(in_flight)
        self._leave("pause")
        return pause

    async def commit(self, version: Version, cache: CachePolicy) -> Version:
        await self._enter("commit")
        held = await self.engine.commit(version, cache)
        self._stale = False
        self._leave("commit")
        return held

    async def resume(self) -> None:
        await self._enter("resume")
        await self.engine.resume()
        self._leave("resume")

    async def _enter(self, call: Call) -> None:
        if call in self._hanging:
            self._hanging.discard(call)
            await asyncio.Event().wait()
        self._alive()

    def _leave(self, call: Call) -> None:
        self._alive()
        if call in self._unacknowledged:
            self._unacknowledged.discard(call)
            raise EngineError(f"{self.name}: the connection broke before the answer to {call}")

    def _alive(self) -> None:
        if self._dead is not None:
            raise EngineError(self._dead)
