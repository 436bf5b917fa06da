"""What a change of configuration would buy: the changes that are tried, what came out, and which one to make.

    World ─► changes ─► (simulated elsewhere, the same draws of the work for each) ─► Comparison ─► Recommendation
                                                                     Reproduction ──┘

Law: pure. One change at a time, so that its effect is its own. Two worlds are compared draw by draw on the same
programs, so that the spread of the differences is that of the change, not of the work. A gain counts when it is larger
than its uncertainty, half the interval over draws plus the error with which the simulation reproduces the run that it
was fitted to; and larger than `WORTH`, below which no change is worth its risk. What takes other trajectories into the
batch than were dispatched is shown and never recommended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from muster.sim.collection import World

WORTH = 0.05
"""Share of a batch's time below which a change is not worth its risk."""
BIASED = 0.03
"""A ratio of lengths as far from 1 as this is a bias."""
WITHIN = 0.05
"""Share of the best TTB that fewer sandboxes may cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing done otherwise. `name` is short; `says` goes on after "recommended:", with the keys to set."""

    name: str
    says: str
    world: World


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


def at_least(outcome: Outcome, busy_s: float) -> Outcome:
    """`outcome` where the devices' busy seconds of a batch cannot overlap: all of them are processes that take every
    core of one machine, so that whatever is done at once takes turns. No batch takes less than their sum."""
    stretch = max(1.0, busy_s / outcome.ttb_mean_s)
    return replace(
        outcome,
        ttb_p50_s=outcome.ttb_p50_s * stretch,
        ttb_mean_s=outcome.ttb_mean_s * stretch,
        device_s=outcome.device_s * stretch,
    )


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
        """What the change does to the length of trained trajectories; 1 is no bias. Groups without gradient are left
        out with and without the change, and are no bias of it."""
        return median(self.after, lambda o: o.length_ratio) / median(self.before, lambda o: o.length_ratio)

    @property
    def biased(self) -> bool:
        return abs(self.length_ratio - 1) > BIASED


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """The run itself, simulated. TTB p50 in seconds."""

    measured_s: float
    simulated_s: float

    @property
    def error(self) -> float:
        """Share by which the simulation is too slow (positive) or too fast."""
        return self.simulated_s / self.measured_s - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """`comparison` is None when nothing pays; `nearest` is then what came closest."""

    comparison: Comparison | None
    nearest: Comparison | None
    uncertainty: float


def recommend(comparisons: Sequence[Comparison], reproduction: Reproduction | None) -> Recommendation:
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


def changes(world: World) -> list[Change]:
    """Everything worth trying in this world, cheap changes of configuration before those that need machines."""
    return [*_scheduling(world), *_sandboxes(world), *_engines(world), *_publication(world)]


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


def with_slots(world: World, slots: int) -> World:
    """So many sandboxes, and trajectories in them."""
    return world.with_(sandboxes={"slots": slots}, schedule={"slots": slots})


def unlimited(world: World) -> int:
    """Trajectories at once beyond which none waits for a slot."""
    schedule = world.schedule
    groups = schedule.groups_per_batch * (1 + schedule.max_lag) * schedule.over_launch
    return int(np.ceil(groups)) * schedule.group_size


def devices(world: World) -> int:
    """Accelerators of the engines, and the trainer's."""
    return world.fleet.replicas * world.fleet.config().devices + 1


def median(outcomes: Sequence[Outcome], read: Callable[[Outcome], float]) -> float:
    return float(np.median([read(o) for o in outcomes]))


def _scheduling(world: World) -> list[Change]:
    schedule = world.schedule
    lag, most = schedule.max_lag, unlimited(world)
    slots = min(schedule.slots, most)
    found = [
        Change(
            name=f"max_lag {lag + 1}",
            says=f"collect the next batch while the trainer trains (schedule.max_lag = {lag + 1}, with a correction)",
            world=world.with_(schedule={"max_lag": lag + 1, "policy": None, "over_launch": 1.0, "surplus": "cancel"}),
        )
    ]
    found += [
        Change(
            name=f"trajectories {number}",
            says=f"let {word} trajectories live at once (schedule.slots = {number})",
            world=world.with_(schedule={"slots": number}),
        )
        for number, word in ((2 * slots, "more"), (max(1, slots // 2), "fewer"))
        if word == "fewer" or slots < most
    ]
    if schedule.concurrency.policy != "aimd":
        concurrency = schedule.concurrency.model_copy(update={"policy": "aimd"})
        found.append(
            Change(
                name="aimd",
                says="let the engines' cache decide how many trajectories live (schedule.concurrency.policy = 'aimd')",
                world=world.with_(schedule={"concurrency": concurrency}),
            )
        )
    if lag > 0 and schedule.batch_policy != "window":
        found.append(
            Change(
                name="window",
                says="take groups greedily inside a window of submissions (schedule.policy = 'window')",
                world=world.with_(schedule={"policy": "window"}),
            )
        )
    if schedule.over_launch == 1:
        found.append(
            Change(
                name="over-launch 1.25",
                says="launch a quarter more groups than a batch needs (schedule.over_launch = 1.25)",
                world=world.with_(
                    schedule={"over_launch": 1.25, "policy": "window" if lag else "greedy", "surplus": "cancel"}
                ),
            )
        )
    return found


def _sandboxes(world: World) -> list[Change]:
    sandboxes, most = world.sandboxes, unlimited(world)
    warm = max(2 * sandboxes.warm, world.schedule.group_size)
    found = [
        Change(
            name=f"slots {number}",
            says=f"give the pool more slots (sandbox.slots = {number}, schedule.slots = {number})",
            world=world.with_(sandboxes={"slots": number}, schedule={"slots": max(world.schedule.slots, number)}),
        )
        for number in (2 * sandboxes.slots, 4 * sandboxes.slots)
        if number < 2 * most and sandboxes.slots < most
    ]
    return [
        *found,
        Change(
            name=f"warm {warm}",
            says=f"keep more forks warm (sandbox.warm = {warm})",
            world=world.with_(sandboxes={"warm": warm}),
        ),
        Change(
            name=f"verifiers {2 * sandboxes.verifier_slots}",
            says=f"run more verifiers at once (sandbox.verifier_slots = {2 * sandboxes.verifier_slots})",
            world=world.with_(sandboxes={"verifier_slots": 2 * sandboxes.verifier_slots}),
        ),
    ]


def _engines(world: World) -> list[Change]:
    fleet = world.fleet
    found: list[Change] = []
    if fleet.replicas > 1 and fleet.router.policy != "affinity":
        router = fleet.router.model_copy(update={"policy": "affinity"})
        found.append(
            Change(
                name="affinity",
                says="keep sessions where their cache is (router policy 'affinity')",
                world=world.with_(fleet={"router": router}),
            )
        )
    numbers = dict.fromkeys((fleet.replicas + 1, 2 * fleet.replicas))
    return [
        *found,
        *(
            Change(
                name=f"engines {number}",
                says=f"add engines ({number} replicas in the place of {fleet.replicas})",
                world=world.with_(fleet={"replicas": number}),
            )
            for number in numbers
        ),
    ]


def _publication(world: World) -> list[Change]:
    """A quarter of the time: what in-place resharding or deltas give over whole files."""
    engine = world.fleet.config()
    faster = engine.model_copy(update={"stage_s": engine.stage_s / 4, "commit_s": engine.commit_s / 4})
    return [
        Change(
            name="publish x4",
            says="publish weights four times as fast (another transport, or deltas)",
            world=world.with_(fleet={"engine": faster}, training={"export_s": world.training.export_s / 4}),
        )
    ]
