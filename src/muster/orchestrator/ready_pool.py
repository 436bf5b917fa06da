"""The ready pool: complete groups waiting for a batch, and the policy that picks from them.

Law: all decisions about which ready groups form a batch live here; this file knows no clock, no engine and no
sandbox. Policies differ in one number, how far a batch may reach past the oldest unresolved submission:

    cohort, fifo   0            nothing overtakes: the batch is the oldest groups, whatever they take
    window         f x pending  greedy inside the oldest share of submissions, strict across it
    greedy         unbounded    the first to finish; selects short trajectories, see the bias ledger

A submission is unresolved while its group is being collected.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Literal

from muster.orchestrator.staleness import allowed
from muster.types import ReadyGroup

BatchPolicy = Literal["cohort", "window", "fifo", "greedy"]


class ReadyPool:
    """Example: `pool.add(group); pool.expire(step); groups = pool.take(8, unresolved={3, 5})`."""

    def __init__(self, *, policy: BatchPolicy, window_fraction: float, max_lag: int) -> None:
        self._policy: BatchPolicy = policy
        self._window_fraction = window_fraction
        self._max_lag = max_lag
        self._groups: dict[int, ReadyGroup] = {}  # by submission

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def groups(self) -> tuple[ReadyGroup, ...]:
        """In order of submission."""
        return tuple(self._groups[s] for s in sorted(self._groups))

    def add(self, group: ReadyGroup) -> None:
        assert group.submission not in self._groups, f"group {group.id} is in the pool already"
        self._groups[group.submission] = group

    def expire(self, step: int) -> list[ReadyGroup]:
        """Remove and return the groups too stale for batch `step`."""
        stale = [g for g in self.groups if not allowed(g.members, step, max_lag=self._max_lag)]
        for group in stale:
            del self._groups[group.submission]
        return stale

    def take(self, count: int, *, unresolved: Collection[int]) -> tuple[ReadyGroup, ...] | None:
        """Remove and return the first `count` eligible groups, oldest first; None if there are too few."""
        reach = self._reach(unresolved)
        eligible = [s for s in sorted(self._groups) if s < reach][:count]
        if len(eligible) < count:
            return None
        return tuple(self._groups.pop(s) for s in eligible)

    def _reach(self, unresolved: Collection[int]) -> float:
        """Submissions below this may be taken."""
        if self._policy == "greedy" or not unresolved:
            return math.inf
        oldest = min(unresolved)
        if self._policy != "window":
            return oldest
        pending = len(unresolved) + len(self._groups)
        return oldest + math.ceil(self._window_fraction * pending)
