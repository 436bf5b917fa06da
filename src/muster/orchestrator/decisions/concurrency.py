"""Concurrency limit: how many trajectories may be live at once, when the engines' cache is what is short.

Law: pure; the caller brings statistics and the time. A trajectory comes back to its engine turn after turn, and finds
its prefix only if all that are live fit into the cache together. Beyond that point every turn is computed again from
its beginning, so that more at once finish less: 256 live trajectories may take twice as long as 64.

    fixed    slots alone
    memory   as many as fit: fill x cache / mean context of a live trajectory (that of those that ended)
    aimd     up by `increase` while the limit is used and the cache holds, down by `decrease` when it does not: at an
             interval in which requests were preempted, or less than `hit_rate` of the prompt tokens were cached
             (Chiu and Jain 1989: additive increase, multiplicative decrease is what converges)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from muster.engine.port import EngineStatistics
from muster.orchestrator.config import ConcurrencyConfig

_FORGETS = 0.98  # weight of the mean context so far against one more that ended: about fifty count


@dataclass(frozen=True, slots=True)
class _Counters:
    """Of all engines together, since their start."""

    prompt_tokens: int
    cached_tokens: int
    preemptions: int

    @classmethod
    def of(cls, statistics: Sequence[EngineStatistics]) -> _Counters:
        return cls(
            sum(s.prompt_tokens for s in statistics),
            sum(s.cached_tokens for s in statistics),
            sum(s.preemptions for s in statistics),
        )


class Concurrency:
    """Limit of live trajectories, adjusted to what the engines say.

    Example: `concurrency.observe(statistics, live=40, now=12.0); concurrency.limit`
    """

    def __init__(self, config: ConcurrencyConfig, slots: int) -> None:
        self._config = config
        self._slots = slots
        self._allowed = min(config.start, slots) if config.policy == "aimd" else slots
        self._context: float | None = None
        self._cache_tokens = 0
        self._looked_at = float("-inf")
        self._before: _Counters | None = None

    @property
    def limit(self) -> int:
        """Live trajectories allowed now; at most the slots."""
        return max(min(self._config.least, self._slots), min(self._allowed, self._slots))

    def ended(self, context_tokens: int) -> None:
        """A trajectory ended with so many tokens. Over its life it held about half of them."""
        held = context_tokens / 2
        self._context = held if self._context is None else _FORGETS * self._context + (1 - _FORGETS) * held
        self._fit()

    def observe(self, statistics: Sequence[EngineStatistics], *, live: int, now: float) -> None:
        """Take in what the engines say at `now`, in seconds, with `live` trajectories."""
        self._cache_tokens = sum(s.kv_capacity_tokens for s in statistics)
        if self._config.policy == "aimd" and now >= self._looked_at + self._config.interval_s:
            self._looked_at = now
            self._steer(_Counters.of(statistics), live)
        self._fit()

    def _steer(self, now: _Counters, live: int) -> None:
        before, self._before = self._before, now
        if before is None or now.prompt_tokens <= before.prompt_tokens:  # a replica that restarted counts from 0
            return
        hit_rate = (now.cached_tokens - before.cached_tokens) / (now.prompt_tokens - before.prompt_tokens)
        if now.preemptions > before.preemptions or hit_rate < self._config.hit_rate:
            self._allowed = int(min(self._allowed, max(live, 1)) * self._config.decrease)
        elif live >= self.limit:
            self._allowed = min(self._allowed + self._config.increase, self._slots)
        self._allowed = max(self._allowed, self._config.least)

    def _fit(self) -> None:
        if self._config.policy == "memory" and self._context and self._cache_tokens:
            self._allowed = int(self._config.fill * self._cache_tokens / self._context)
