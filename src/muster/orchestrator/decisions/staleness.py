"""Staleness: how far the policy that made a group's tokens lies behind the one that would train on them.

    versions of the tokens ─► oldest ─┬─ lag, in versions ─────────────── over max_lag ────────► too_stale
                                      └─ distance, by the odometer, nats ─ over max_divergence ─► diverged

At train time the trainer measures the groups with stale tokens exactly; `over_limit` says which are replaced.

Law: pure. Versions come from the tokens, never from when something was launched or returned. Batch k is trained
by a trainer that holds version k, so the lag of a group in batch k is k minus its oldest token's version. Tokens of the
trainer's own version are always fresh: whatever the limits, there is something that may be trained.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from muster.orchestrator.decisions.drift import Odometer
from muster.trainer.config import DivergenceLimit
from muster.trainer.port import Divergence
from muster.types import Batch, ReadyGroup, Trajectory

StaleReason = Literal["too_stale", "diverged"]


class Freshness:
    """Staleness limits: decides what may still be trained.

    max_lag: versions. max_divergence: nats (root-mean-square log-ratio), None for no limit by distance.
    odometer: that of the run so far, `drift.rebuilt(steps)` when it resumes.

    Example:
        freshness = Freshness(max_lag=4, max_divergence=0.1)
        freshness.moved(1, 0.03)  # after the step that made version 1
        freshness.reason(group.members, step=1)  # None, "too_stale" or "diverged"
    """

    def __init__(self, max_lag: int, max_divergence: float | None = None, odometer: Odometer | None = None) -> None:
        self.max_lag = max_lag
        self.max_divergence = max_divergence
        self.odometer = odometer if odometer is not None else Odometer()

    def moved(self, version: int, rms: float | None) -> None:
        """The step that made `version` moved the policy by `rms` (`drift.measured`); None: nobody measured it."""
        self.odometer.moved(version, rms)

    def reason(self, members: Iterable[Trajectory], step: int) -> StaleReason | None:
        """Reason why batch `step` may not train on `members`; None if it may."""
        return self.verdict(oldest_version(members, default=step), step)

    def verdict(self, version: int, step: int) -> StaleReason | None:
        """Reason why batch `step` may not train on tokens of `version`; None if it may."""
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
        if self.max_divergence is None:
            return version + self.max_lag
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


def suspects(batch: Batch) -> tuple[ReadyGroup, ...]:
    """The groups that the trainer measures before the step: those with a token of an earlier version than its own."""
    return tuple(g for g in batch.groups if oldest_version(g.members, default=batch.step) < batch.step)


def over_limit(measured: Mapping[str, Divergence], limit: DivergenceLimit, batch: Batch) -> dict[str, StaleReason]:
    """Groups of `batch` that are to be replaced, with the reason: a member was measured over the limit.

    Only groups with a stale token are. What the trainer's own version sampled differs by numerics alone: to sample it
    again would find the same, and the batch would never be full.
    """
    return {
        group.id: "diverged"
        for group in suspects(batch)
        if any(m.id in measured and measured[m.id].k3 > limit.max_k3 for m in group.members)
    }
