"""Staleness: how far the policy that made a group's tokens lies behind the one that would train on them.

Law: pure. Versions come from the tokens, never from when something was launched or returned. Batch k is trained
by a trainer that holds version k, so the lag of a group in batch k is k minus its oldest token's version.
"""

from __future__ import annotations

from collections.abc import Iterable

from muster.types import Trajectory


def lag(members: Iterable[Trajectory], step: int) -> int:
    """Versions between the oldest sampled token of `members` and the trainer at `step`; 0 if nothing was sampled.

    Negative when the tokens are newer than the trainer at that step.
    """
    return step - min((v for m in members if (v := m.oldest_version) is not None), default=step)


def allowed(members: Iterable[Trajectory], step: int, *, max_lag: int) -> bool:
    """Whether batch `step` may train on `members`."""
    return lag(members, step) <= max_lag
