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

from muster.orchestrator.config import BatchPolicy
from muster.orchestrator.decisions.staleness import Freshness, StaleReason, oldest_version
from muster.types import ReadyGroup


class ReadyPool:
    """Pool of complete groups that wait for a batch.

    Example: `pool.add(group); pool.expire(step); groups = pool.take(8, oldest_open=3, open_groups=2)`.
    """

    def __init__(self, *, policy: BatchPolicy, window_fraction: float, freshness: Freshness) -> None:
        self._policy: BatchPolicy = policy
        self._window_fraction = window_fraction
        self._freshness = freshness
        self._groups: dict[int, ReadyGroup] = {}  # by submission
        self._oldest: dict[int, int | None] = {}  # version of the group's oldest token; None: nothing sampled
        self._unseen: list[int] = []  # submissions that were added since the last look for stale ones
        self._seen_at: tuple[int, int] | None = None  # step and version of the odometer at that look

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def groups(self) -> tuple[ReadyGroup, ...]:
        """In order of submission."""
        return tuple(self._groups[s] for s in sorted(self._groups))

    def add(self, group: ReadyGroup) -> None:
        assert group.submission not in self._groups, f"group {group.id} is in the pool already"
        self._groups[group.submission] = group
        self._unseen.append(group.submission)
        oldest = oldest_version(group.fresh, default=-1)
        self._oldest[group.submission] = oldest if oldest >= 0 else None

    def remove(self, group: ReadyGroup) -> None:
        """Remove a group that will not train."""
        self._take(group.submission)

    def expire(self, step: int) -> list[tuple[ReadyGroup, StaleReason]]:
        """Remove and return the groups too stale for batch `step`, oldest first, each with the reason."""
        stale: list[tuple[ReadyGroup, StaleReason]] = []
        now = step, self._freshness.odometer.version
        unseen = self._unseen if now == self._seen_at else list(self._groups)
        self._seen_at, self._unseen = now, []
        for submission in sorted(unseen):
            oldest = self._oldest[submission]
            reason = self._freshness.verdict(step if oldest is None else oldest, step)
            if reason is not None:
                stale.append((self._take(submission), reason))
        return stale

    def take(self, count: int, *, oldest_open: int | None, open_groups: int) -> tuple[ReadyGroup, ...] | None:
        """Remove and return the first `count` eligible groups, oldest first; None if there are too few.

        `oldest_open`: the oldest unresolved submission, None without any; `open_groups`: how many there are.
        """
        if len(self._groups) < count:
            return None
        reach = self._reach(oldest_open, open_groups)
        eligible = [s for s in sorted(self._groups) if s < reach][:count]
        if len(eligible) < count:
            return None
        return tuple(self._take(s) for s in eligible)

    def _take(self, submission: int) -> ReadyGroup:
        del self._oldest[submission]
        if submission in self._unseen:
            self._unseen.remove(submission)
        return self._groups.pop(submission)

    def _reach(self, oldest_open: int | None, open_groups: int) -> float:
        """Submissions below this may be taken."""
        if self._policy == "greedy" or oldest_open is None:
            return math.inf
        if self._policy != "window":
            return oldest_open
        return oldest_open + math.ceil(self._window_fraction * (open_groups + len(self._groups)))
