"""Staleness: how far the policy that made a group's tokens lies behind the one that would train on them.

    versions of the tokens ─► oldest ─┬─ lag, in versions ─────────────── over max_lag ────────► too_stale
                                      └─ distance, by the odometer, nats ─ over max_divergence ─► diverged

Law: pure. Versions come from the tokens, never from when something was launched or returned. Batch k is trained
by a trainer that holds version k, so the lag of a group in batch k is k minus its oldest token's version. Tokens of the
trainer's own version are always fresh: whatever the limits, there is something that may be trained.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from muster.orchestrator.drift import Odometer
from muster.types import Trajectory

StaleReason = Literal["too_stale", "diverged"]


class Freshness:
    """What may still be trained. Example:

        freshness = Freshness(max_lag=4, max_divergence=0.1)
        freshness.moved(1, 0.03)                  # after the step that made version 1
        freshness.reason(group.members, step=1)   # None, "too_stale" or "diverged"

    max_lag: versions. max_divergence: nats (root-mean-square log-ratio), None for no limit by distance.
    odometer: that of the run so far, `drift.rebuilt(steps)` when it resumes.
    """

    def __init__(self, max_lag: int, max_divergence: float | None = None, odometer: Odometer | None = None) -> None:
        self.max_lag = max_lag
        self.max_divergence = max_divergence
        self.odometer = odometer if odometer is not None else Odometer()

    def moved(self, version: int, rms: float | None) -> None:
        """The step that made `version` moved the policy by `rms` (`drift.measured`); None: nobody measured it."""
        self.odometer.moved(version, rms)

    def allows(self, members: Iterable[Trajectory], step: int) -> bool:
        """Whether batch `step` may train on `members`."""
        return self.reason(members, step) is None

    def reason(self, members: Iterable[Trajectory], step: int) -> StaleReason | None:
        """Why batch `step` may not train on `members`; None if it may."""
        return self.verdict(oldest_version(members, default=step), step)

    def verdict(self, version: int, step: int) -> StaleReason | None:
        """Why batch `step` may not train on tokens of `version`; None if it may."""
        if step - version > self.max_lag:
            return "too_stale"
        if version >= step or self.max_divergence is None:
            return None
        return "diverged" if self.odometer.distance(version, step) > self.max_divergence else None

    def reach(self, version: int) -> int:
        """The last batch that tokens of `version` may join, as far as is known now: admit for it and none beyond.

        Never before batch `version`. Without it a limit that one step exceeds would sample groups for the next
        batch, drop them, and sample them again, until that step is made.
        """
        step = version
        while step < version + self.max_lag and self.verdict(version, step + 1) is None:
            step += 1
        return step


def oldest_version(members: Iterable[Trajectory], *, default: int) -> int:
    """Version of the oldest sampled token of `members`; `default` if nothing was sampled."""
    return min((v for m in members if (v := m.oldest_version) is not None), default=default)


def lag(members: Iterable[Trajectory], step: int) -> int:
    """Versions between the oldest sampled token of `members` and the trainer at `step`; 0 if nothing was sampled.

    Negative when the tokens are newer than the trainer at that step.
    """
    return step - oldest_version(members, default=step)


def allowed(members: Iterable[Trajectory], step: int, *, max_lag: int) -> bool:
    """Whether batch `step` may train on `members`."""
    return lag(members, step) <= max_lag
