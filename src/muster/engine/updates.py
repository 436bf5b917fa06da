"""The weights of one replica: which it serves, which are staged, and the pause in which they change. Pure.

                  FINISH: in flight have ended
    serving ─pause─► pausing ───────────► paused ─commit─► paused, with what was staged
       ▲                │ else at once      │                │
       └─────resume─────┴───────────────────┴────────────────┘

Law: an order that is given again, because its answer was lost or its caller gave up, is answered and not carried out
again: once per version for staging and committing, once until a resume for pausing. A commit needs a pause in effect
and its own version staged. Requests share cache under one salt, and every commit makes a new one unless it shares.
This file knows no weights, no requests and no loop: whoever serves stops, ends and computes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from muster.engine.port import CachePolicy, InFlight, Pause
from muster.errors import EngineError
from muster.types import Version


@dataclass(slots=True)
class WeightUpdates:
    """Of the replica `name`, which begins with `version`.

    Example:
        if updates.pause(InFlight.HOLD, answer):  # stop computing, then
            updates.take_effect(Pause(held=3))
        if updates.may_commit(version):  # place the weights, then
            updates.commit(version, CachePolicy.KEEP)
        updates.resume()
    """

    name: str
    version: Version
    salt: int = 0
    staged: Version | None = field(init=False, default=None)
    pausing: InFlight | None = field(init=False, default=None)  # from the order to pause until a resume
    paused: Pause | None = field(init=False, default=None)  # what the pause met, once it is in effect
    finished: int = field(init=False, default=0)  # requests that ended since a pause began that lets them
    _asked: list[Callable[[Pause], None]] = field(init=False, default_factory=list[Callable[[Pause], None]])

    @property
    def drains(self) -> bool:
        """A pause waits for what is in flight."""
        return self.pausing is InFlight.FINISH and self.paused is None

    def pause(self, in_flight: InFlight, effective: Callable[[Pause], None]) -> bool:
        """Whether there is something to do; `effective` is called once the pause is in effect, at once if it is."""
        if self.paused is not None:
            effective(self.paused)
            return False
        if self.pausing is None:
            self.finished = 0
        self.pausing = in_flight
        self._asked.append(effective)
        return True

    def ended(self) -> None:
        """A request has."""
        self.finished += self.pausing is InFlight.FINISH

    def take_effect(self, pause: Pause) -> None:
        """Nothing computes any more; whoever asked for the pause is answered."""
        self.paused = pause
        asked, self._asked = self._asked, []
        for effective in asked:
            effective(pause)

    def resume(self) -> bool:
        """Whether a pause was in effect."""
        was_paused = self.paused is not None
        self.pausing = self.paused = None
        return was_paused

    def holds(self, version: Version) -> bool:
        """Whether `version` is current or staged already."""
        return version in (self.version, self.staged)

    def stage(self, version: Version) -> None:
        self.staged = version

    def may_commit(self, version: Version) -> bool:
        """Whether there is anything to commit. Raises `EngineError` when it cannot be done now."""
        if version == self.version:
            return False
        if self.paused is None:
            raise EngineError(f"{self.name}: version {version.number}: commit needs a paused engine")
        if version != self.staged:
            raise EngineError(f"{self.name}: version {version.number} is not staged")
        return True

    def commit(self, version: Version, cache: CachePolicy) -> None:
        """Notes that the commit was done, as `may_commit` allowed."""
        self.version, self.staged = version, None
        self.salt += cache is not CachePolicy.SHARE
