"""Planner: what a change of configuration would buy. What came out is compared; then it says which change to make.

    changes ─► (simulated elsewhere, the same draws of the work for each) ─► Comparison ─► Recommendation
                                                              SimulatedRun ──┘

Law: pure. Two worlds are compared draw by draw on the same
programs, so that the spread of the differences is that of the change, not of the work. A gain counts when it is larger
than its uncertainty, half the interval over draws plus the error with which the simulation reproduces the run that it
was fitted to; and larger than `WORTH`, below which no change is worth its risk. What takes other trajectories into the
batch than were dispatched is shown and never recommended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from muster.lab.collection.collection import CollectionWorld
from muster.lab.plan.changes import Change

WORTH = 0.05
"""Share of a batch's time below which a change is not worth its risk."""
BIASED = 0.03
"""A ratio of lengths as far from 1 as this is a bias."""
WITHIN = 0.05
"""Share of the best TTB that fewer sandboxes may cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One draw of the work in one world. Seconds of a batch; `device_s`: accelerator-seconds that a batch took.

    length_ratio: mean sampled tokens of what was trained over those of the programs of all that was launched, whether
    they were played to their end or not.
    """

    ttb_p50_s: float
    ttb_mean_s: float
    trainer_wait_s: float
    device_s: float
    length_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A change's outcomes beside those without it, draw by draw."""

    change: Change
    before: tuple[Outcome, ...]
    after: tuple[Outcome, ...]

    @property
    def gains(self) -> tuple[float, ...]:
        """Share of the mean TTB that is saved, in each draw."""
        return tuple(1 - a.ttb_mean_s / b.ttb_mean_s for a, b in zip(self.after, self.before, strict=True))

    @property
    def gain(self) -> float:
        return float(np.median(self.gains))

    @property
    def interval(self) -> tuple[float, float]:
        """5 to 95 % of the draws' gains; each draw is a bootstrap replicate, so this is the interval of the gain."""
        low, high = np.quantile(self.gains, (0.05, 0.95))
        return float(low), float(high)

    @property
    def spread(self) -> float:
        """Half the interval."""
        low, high = self.interval
        return (high - low) / 2

    @property
    def device_s(self) -> float:
        return median(self.after, lambda o: o.device_s)

    @property
    def length_ratio(self) -> float:
        """Change of the length of trained trajectories; 1 is no bias. Groups without gradient are left
        out with and without the change, and are no bias of it."""
        return median(self.after, lambda o: o.length_ratio) / median(self.before, lambda o: o.length_ratio)

    @property
    def biased(self) -> bool:
        return abs(self.length_ratio - 1) > BIASED


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRun:
    """The run itself, simulated. TTB p50 in seconds."""

    measured_s: float
    simulated_s: float

    @property
    def error(self) -> float:
        """Share by which the simulation is too slow (positive) or too fast."""
        return self.simulated_s / self.measured_s - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """Recommended change. `comparison` is None when nothing pays; `nearest` is then what came closest."""

    comparison: Comparison | None
    nearest: Comparison | None
    uncertainty: float


def recommend(comparisons: Sequence[Comparison], reproduction: SimulatedRun | None) -> Recommendation:
    """The change with the largest gain that is larger than its uncertainty. Of those that gain as much, within the
    spread of the best, the one that takes the fewest device-hours; then the first."""
    error = abs(reproduction.error) if reproduction else 0.0
    fair = [c for c in comparisons if not c.biased]
    nearest = max(fair, key=lambda c: c.gain, default=None)
    sure = [c for c in fair if c.gain > max(WORTH, c.spread + error)]
    if not sure:
        spread = nearest.spread if nearest else 0.0
        return Recommendation(comparison=None, nearest=nearest, uncertainty=spread + error)
    best = max(sure, key=lambda c: c.gain)
    near = [c for c in sure if c.gain >= best.gain - max(best.spread, 0.01)]
    chosen = min(near, key=lambda c: round(c.device_s / best.device_s, 2))
    return Recommendation(comparison=chosen, nearest=nearest, uncertainty=chosen.spread + error)


def slots_needed(
    ttb_s: Callable[[int], float], *, least: int, most: int, within: float = WITHIN
) -> tuple[int, dict[int, float]]:
    """The fewest trajectories at once whose TTB is within `within` of the best, and what was tried.

    Halves `most` down to `least` (more at once may also be slower, where the engines' cache is short), then narrows
    the step in which the TTB rises to an eighth of it.
    """
    tried: dict[int, float] = {}
    number = most
    while number > least:
        tried[number] = ttb_s(number)
        number //= 2
    tried[least] = ttb_s(least)

    def enough(number: int) -> bool:
        return tried[number] <= (1 + within) * min(tried.values())

    fewest = min(n for n in tried if enough(n))
    below = max((n for n in tried if n < fewest), default=fewest)
    while fewest - below > max(1, fewest // 8):
        middle = (fewest + below) // 2
        tried[middle] = ttb_s(middle)
        fewest, below = (middle, below) if enough(middle) else (fewest, middle)
    return fewest, dict(sorted(tried.items()))


def devices(world: CollectionWorld) -> int:
    """Accelerators of the engines, and the trainer's."""
    return world.fleet.replicas * world.fleet.config().devices + 1


def median(outcomes: Sequence[Outcome], read: Callable[[Outcome], float]) -> float:
    return float(np.median([read(o) for o in outcomes]))
