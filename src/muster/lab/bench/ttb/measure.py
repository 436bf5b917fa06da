"""One collection measured: its time by cause, against its bound; what it wasted; whom it selected.

    CollectionWorld, seed ─simulate─► journal, counters ─► Measured (numbers alone, to be sent between processes)

Law: lengths are those of the programs that were dispatched, also of the ones that were cancelled before they ended:
what a policy leaves out cannot hide by never ending.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
import numpy.typing as npt

from muster.journal import LaunchRow
from muster.lab.collection.bounds import planned_bounds
from muster.lab.collection.collection import Collected, CollectionWorld, simulate
from muster.observe.critical_path import batch_time
from muster.observe.devices import device_ledger
from muster.observe.record import Record, read
from muster.types import DeviceState, Stage

Floats = npt.NDArray[np.float64]

STOPPED = "stopped"
"""Drop reason of what was in flight when the run had all its batches."""
READY_S = 0.025
"""What a sandbox takes to be ready at the least, in the bounds of every arm: a fork."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Measurements of one world and seed; several batches are means over them.

    parts: seconds by cause, they sum to `ttb_s`. bound_s: the largest lower bound of the batch's work, and its name.
    states: share of engine time between opening and ready. hit_rate: prompt tokens found in a cache. computed_tokens:
    the others; needed_tokens: those that perfect reuse would have left. wasted_tokens: sampled, and in no batch.
    wasted_slot_s: sandbox seconds of booting, stopping and attempts that no batch holds. length_ratio, p90_ratio:
    sampled tokens of the batches' members over those of all dispatched programs. inclusion: share of dispatched
    programs that are in a batch, by decile of length. digest: of the journal's bytes.
    """

    ttb_s: float
    parts: Mapping[Stage, float]
    bound_s: float
    bound: str
    states: Mapping[DeviceState, float]
    hit_rate: float
    computed_tokens: int
    needed_tokens: int
    wasted_tokens: int
    sampled_tokens: int
    wasted_slot_s: float
    preemptions: int
    length_ratio: float
    p90_ratio: float
    inclusion: tuple[float, ...]
    batches: int
    refills: int
    digest: str

    @property
    def score(self) -> float:
        """TTB over its bound."""
        return self.ttb_s / self.bound_s

    @property
    def env_wait(self) -> float:
        return self.states.get(DeviceState.ENV_WAIT, 0.0)


def measure(world: CollectionWorld, seed: int) -> Measured:
    """Simulate and measure. Deterministic."""
    collected = simulate(world, seed)
    try:
        return _measured(collected)
    finally:
        collected.journal.close()


def _measured(collected: Collected) -> Measured:
    record = read(collected.journal)
    batches = record.batches
    times = [
        batch_time(b, record.groups.values(), record.launches, record.trajectories.values(), record.spans)
        for b in batches
    ]
    bound_s, bound = _bound(collected, len(batches))
    chosen, dispatched = _lengths(collected, record)
    members = {member for batch in batches for member in batch.members}
    idle_at_end = {d.id for d in record.drops.values() if d.reason == STOPPED}
    lost = [launch for launch in record.launches.values() if launch.id not in members | idle_at_end]
    prompt = sum(e.prompt_tokens for e in collected.engines)
    return Measured(
        ttb_s=float(np.mean([t.ttb_s for t in times])),
        parts={stage: float(np.mean([t.parts.get(stage, 0.0) for t in times])) for stage in Stage},
        bound_s=bound_s,
        bound=bound,
        states=_states(record),
        hit_rate=collected.hit_rate,
        computed_tokens=prompt - sum(e.cached_tokens for e in collected.engines),
        needed_tokens=_needed_tokens(collected, record),
        wasted_tokens=sum(collected.sampled.get(launch.id, 0) for launch in lost),
        sampled_tokens=sum(collected.sampled.values()),
        wasted_slot_s=collected.booting_s + collected.stopping_s + sum(_lived_s(record, launch) for launch in lost),
        preemptions=sum(e.preemptions for e in collected.engines),
        length_ratio=float(chosen.mean() / np.abs(dispatched).mean()),
        p90_ratio=float(np.quantile(chosen, 0.9) / np.quantile(np.abs(dispatched), 0.9)),
        inclusion=_inclusion(dispatched),
        batches=len(batches),
        refills=sum(launch.attempt > 0 for launch in record.launches.values()),
        digest=sha256(collected.journal.to_bytes()).hexdigest(),
    )


def _bound(collected: Collected, batches: int) -> tuple[float, str]:
    """The mean over the batches, each taken to hold the groups that were submitted for it. It is the same for every arm
    of a fleet: wherever an arm verifies, it could do so outside its slots."""
    world = collected.world.with_(sandboxes={"verify": "fork"})
    count = world.schedule.groups_per_batch
    seconds: dict[str, list[float]] = {}
    for batch in range(batches):
        groups = [collected.plan(batch * count + i) for i in range(count)]
        bounds = planned_bounds(world, groups, boot_s=READY_S, overlapping=world.schedule.max_lag > 0)
        for name, value in bounds.seconds.items():
            seconds.setdefault(name, []).append(value)
    means = {name: float(np.mean(values)) for name, values in seconds.items()}
    active = max(means, key=lambda name: means[name])
    return means[active], active


def _lengths(collected: Collected, record: Record) -> tuple[Floats, Floats]:
    """Sampled tokens of the batches' members, and of all that was dispatched, negative where no batch holds it.

    Dispatched: groups that were closed, or overtaken by one that was trained.
    """
    trained = {g.id: g for g in record.groups.values() if g.state == "trained"}
    newest = max(g.submission for g in trained.values())
    siblings = range(collected.world.workload.group_size)
    held = {(g.task_id, sibling) for g in trained.values() for sibling in siblings}
    chosen = [collected.program(g.task_id, s).sampled_tokens for g in trained.values() for s in siblings]
    known = {
        (g.task_id, s): None
        for g in record.groups.values()
        if g.state in ("trained", "dropped") or g.submission < newest
        for s in siblings
    }
    dispatched = [collected.program(*key).sampled_tokens * (1 if key in held else -1) for key in known]
    return np.array(chosen, np.float64), np.array(dispatched, np.float64)


def _inclusion(dispatched: Floats) -> tuple[float, ...]:
    ordered = dispatched[np.argsort(np.abs(dispatched), kind="stable")]
    return tuple(float((part > 0).mean()) for part in np.array_split(ordered, min(10, len(ordered))))


def _states(record: Record) -> dict[DeviceState, float]:
    """Shares of engine time between the first opening and the last batch."""
    start, end = record.batches[0].opened_at, record.batches[-1].ready_at
    ledger = device_ledger(record)
    seconds: dict[DeviceState, float] = {}
    for engine in ledger.engines:
        for piece in ledger.strips[engine]:
            inside_s = min(piece.end, end) - max(piece.start, start)
            if inside_s > 0:
                seconds[piece.label] = seconds.get(piece.label, 0.0) + inside_s
    whole_s = sum(seconds.values())
    return {state: value / whole_s for state, value in seconds.items()}


def _needed_tokens(collected: Collected, record: Record) -> int:
    """Prompt tokens that perfect prefix reuse would still compute: a group's prompt once, then what commands show."""
    groups = {x.group_id: x.task_id for x in record.launches.values()}
    total = sum(collected.program(task_id, 0).prompt_tokens for task_id in groups.values())
    for launch in record.launches.values():
        turns = collected.program(launch.task_id, launch.sibling).turns
        total += sum(turn.observation_tokens for turn in turns[:-1])
    return total


def _lived_s(record: Record, launch: LaunchRow) -> float:
    if launch.id in record.trajectories:
        return record.trajectories[launch.id].ended - launch.at
    drop = record.drops.get(launch.id)
    return drop.at - launch.at if drop else 0.0
