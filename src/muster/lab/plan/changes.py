"""Changes that a plan tries: what could be done otherwise in a world.

    CollectionWorld ─► scheduling, sandboxes, engines, publication ─► Change × n

Law: pure. One thing at a time, so that its effect is its own; nothing that could have no effect here (slots where
nobody waits for one, affinity of a single engine). Changes of configuration come before those that take machines.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.lab.collection.collection import CollectionWorld

SLICE_S = 180.0
"""How long a trajectory keeps its sandbox from one that waits, where turns are tried: longer than most commands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing done otherwise. `name` is short; `says` goes on after "recommended:", with the keys to set."""

    name: str
    says: str
    world: CollectionWorld


def changes(world: CollectionWorld) -> list[Change]:
    """Everything worth trying in this world, cheap changes of configuration before those that need machines."""
    return [*_scheduling(world), *_sandboxes(world), *_engines(world), *_publication(world)]


def with_slots(world: CollectionWorld, slots: int) -> CollectionWorld:
    """So many sandboxes, and trajectories in them."""
    return world.with_(sandboxes={"slots": slots}, schedule={"slots": slots})


def unlimited(world: CollectionWorld) -> int:
    """Trajectories at once beyond which none waits for a slot."""
    schedule = world.schedule
    groups = schedule.groups_per_batch * (1 + schedule.max_lag) * schedule.over_launch
    return int(np.ceil(groups)) * schedule.group_size


def _scheduling(world: CollectionWorld) -> list[Change]:
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


def _sandboxes(world: CollectionWorld) -> list[Change]:
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
    if sandboxes.slots < most and sandboxes.slice_s is None:
        found.append(
            Change(
                name="take turns",
                says=f"let all of a batch live and take turns in the sandboxes (sandbox.slice_s = {SLICE_S:g}, "
                f"schedule.slots = {most})",
                world=world.with_(sandboxes={"slice_s": SLICE_S}, schedule={"slots": most}),
            )
        )
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


def _engines(world: CollectionWorld) -> list[Change]:
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


def _publication(world: CollectionWorld) -> list[Change]:
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
