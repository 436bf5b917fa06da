"""The emulated engine as a replica in this process, with the faults that a test orders of it.

Law: obeys the same contract as every replica.
"""

from __future__ import annotations

from itertools import count

from muster.engine.config import EmulatedEngineConfig
from muster.engine.port import CachePolicy, EngineStatistics, InFlight, Pause, Scores, Staged
from muster.errors import EngineError, UserError
from muster.lab.emulated.engine import EmulatedEngine
from muster.lab.emulated.replies import Policy
from muster.lab.faults import INITIAL, InjectedFaults
from muster.types import Completion, Ints, Publication, Sampling, Session, Version


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
        self.faults = InjectedFaults(name)
        self._ids = count()

    def crash(self, reason: str = "killed") -> None:
        """Every pending and later call fails."""
        self.engine.fail(self.faults.crash(reason))

    def restart(self) -> None:
        """Serve again, but nothing before a commit: a restarted replica holds unknown weights."""
        self.engine.restart(INITIAL)
        self.faults.restart()

    async def generate(self, tokens: Ints, sampling: Sampling, session: Session) -> Completion:
        async with self.faults.during("generate"):
            self.faults.check_weights()
            try:
                return await self.engine.generate(str(next(self._ids)), tokens, sampling, session)
            except UserError as error:
                raise EngineError(f"{self.name}: {error}", {"status": 400}) from None

    async def score(self, tokens: Ints, *, temperature: float) -> Scores:
        async with self.faults.during("score"):
            try:
                return await self.engine.score(tokens, temperature)
            except UserError as error:
                raise EngineError(f"{self.name}: {error}", {"status": 400}) from None

    async def statistics(self) -> EngineStatistics:
        async with self.faults.during("statistics"):
            return await self.engine.statistics(take_intervals=True)

    def supports(self, in_flight: InFlight, cache: CachePolicy) -> str | None:
        return None

    async def stage(self, publication: Publication) -> Staged:
        async with self.faults.during("stage"):
            return await self.engine.stage(publication)

    async def pause(self, in_flight: InFlight) -> Pause:
        async with self.faults.during("pause"):
            return await self.engine.pause(in_flight)

    async def commit(self, version: Version, cache: CachePolicy) -> Version:
        async with self.faults.during("commit"):
            held = await self.engine.commit(version, cache)
            self.faults.stale = False
            return held

    async def resume(self) -> None:
        async with self.faults.during("resume"):
            await self.engine.resume()
