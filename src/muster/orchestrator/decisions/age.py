"""Age of the policy, in seconds: when it sampled the tokens of a batch, and when they were trained.

    step k - 1 ends: version k is made ──── published ──── samples a token ──────────── trained on
                                      └──── sampled_age_s ────┘                              │
                                      └──── trained_age_s ───────────────────────────────────┘

Law: pure. Lag counts versions; age is what it means in time, and tells a slow publication (old when it samples) from
slow attempts (old when it is trained). A version's age begins at the end of the step that made it. When within an
attempt a token was sampled follows from its spans: its tokens lie evenly over the time that it decoded. Tokens that it
took over from a keep point are left out: the attempt that sampled them is not this one, and nor are its spans.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from muster.rollout.keeping import kept_tokens
from muster.types import Ints, Stage, Trajectory

Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyAge:
    """Ages of the policy: means over `tokens` sampled tokens, in seconds."""

    sampled_s: float
    trained_s: float
    tokens: int


def policy_age(members: Iterable[Trajectory], made: Mapping[int, float], *, trained_at: float) -> PolicyAge | None:
    """Of the members' sampled tokens whose version is in `made` (version -> when it was made); None: there are none.

    Example: `policy_age(group.fresh, {3: 100.0}, trained_at=160.0)`
    """
    sampled_s = trained_s = 0.0
    tokens = 0
    for member in members:
        versions_T = _versions(member)
        versions_V, at_T = np.unique(versions_T, return_inverse=True)
        made_T = np.array([made.get(v, np.nan) for v in versions_V.tolist()], dtype=np.float64)[at_T]
        known_T = ~np.isnan(made_T)
        sampled_s += float((_sampled_at(member, len(versions_T)) - made_T)[known_T].sum())
        trained_s += float((trained_at - made_T)[known_T].sum())
        tokens += int(known_T.sum())
    if not tokens:
        return None
    return PolicyAge(sampled_s=sampled_s / tokens, trained_s=trained_s / tokens, tokens=tokens)


def _versions(member: Trajectory) -> Ints:
    """Of the tokens that it sampled itself, in the order in which it did."""
    parts = [s.versions_T[s.sampled_T] for s in member.segments]
    return np.concatenate(parts)[kept_tokens(member.outcome.evidence) :] if parts else np.zeros(0, np.int32)


def _sampled_at(member: Trajectory, tokens: int) -> Seconds:
    """Time at which each of `tokens` tokens was sampled; mid-attempt when no span says that it decoded."""
    spans = [s for s in member.spans if s.stage is Stage.DECODE and s.end > s.start]
    if not spans:
        return np.full(tokens, (member.started + member.ended) / 2)
    starts: Seconds = np.array([s.start for s in spans], dtype=np.float64)
    durations: Seconds = np.array([s.duration_s for s in spans], dtype=np.float64)
    ends: Seconds = np.cumsum(durations)  # of each span, in seconds of decoding
    into_T: Seconds = (np.arange(tokens, dtype=np.float64) + 0.5) / max(tokens, 1) * ends[-1]
    at_T = np.searchsorted(ends[:-1], into_T, side="right")  # which span each lies in
    return starts[at_T] + into_T - (ends - durations)[at_T]
