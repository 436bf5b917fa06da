"""Constants of this machine: what turns a declared world into a prediction.

    the first turns of some programs ─┬─ played really ───────────┐
                                      └─ simulated, adding nothing ┴─ what the real ones took longer ─► Constants
    CollectionWorld + Constants ─ simulate ─► predicted TTB

Law: measured on another, smaller batch than the one that is predicted, in the same arm, at about as many turns a
second. Everything that the simulation leaves out is in it: HTTP and JSON, shells, forks, the file system, busy cores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from muster.journal import BatchRow, Journal, SpanRow, TrajectoryRow
from muster.lab.bench.ttb.real.run import RealSetup, collect_real
from muster.lab.bench.ttb.real.words import Groups
from muster.lab.collection.collection import Collected, CollectionWorld, simulate
from muster.lab.collection.timed_sandbox import SandboxTimes
from muster.lab.collection.workload import Lognormal
from muster.types import Stage

_TURN = (Stage.ENGINE_QUEUE, Stage.PREFILL, Stage.RECOMPUTE, Stage.DECODE, Stage.TOOL)
_GRADING = (Stage.VERIFIER_QUEUE, Stage.VERIFY)
PROBE_TURNS = 24
"""About as many as a program has on average: a sandbox's start, verification and end cost as much beside each turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Constants of this machine: seconds beyond the plan.

    turn_s: of one request and one command. boot_s: a fork. grade_s: freezing, a verifier's fork, its script.
    """

    turn_s: float
    boot_s: float
    grade_s: float


def probe(groups: Groups) -> Groups:
    """The first quarter of the groups, with the first turns of each program; unsolved ones stay so."""
    chosen = groups[: max(1, len(groups) // 4)]
    return tuple(tuple(replace(p, turns=p.turns[:PROBE_TURNS]) for p in siblings) for siblings in chosen)


def measure_constants(world: CollectionWorld, groups: Groups, seed: int, place: RealSetup) -> Constants:
    """Play the probe in `world`. Takes seconds, real ones."""
    probed = probe(groups)
    small = world.with_(
        schedule={"groups_per_batch": len(probed)}, sandboxes={"times": without_overhead(world.sandboxes.times)}
    )
    paced = at_pace(small, probed, _turns_per_s(world, groups, seed), seed)
    real, planned = collect_real(paced, probed, seed, place), simulate(paced, seed, groups=probed)
    try:
        return constants_of(real.journal, planned.journal, probed, boot_s=real.boot_s)
    finally:
        real.journal.close()
        planned.journal.close()


def at_pace(world: CollectionWorld, groups: Groups, turns_per_s: float, seed: int) -> CollectionWorld:
    """`world` with so few attempts live that `groups` come to that many turns a second, by the plan.

    First turns have short contexts, which engines answer at once: with as many live as in the whole batch, the machine
    would have more to do at a time than it will have then.
    """
    most = min(world.schedule.slots, world.sandboxes.slots)
    share = min(1.0, turns_per_s / _turns_per_s(world, groups, seed))
    live = max(1, math.ceil(share * most))
    return world.with_(schedule={"slots": live}, sandboxes={"slots": live, "warm": min(world.sandboxes.warm, live)})


def constants_of(real: Journal, planned: Journal, probed: Groups, *, boot_s: float) -> Constants:
    """Constants by which `real` took longer than `planned`, both of the attempts in `probed`."""
    turns = sum(len(program.turns) for siblings in probed for program in siblings)
    attempts = sum(map(len, probed))
    return Constants(
        turn_s=max(0.0, _seconds(real, _TURN) - _seconds(planned, _TURN)) / turns,
        boot_s=boot_s,
        grade_s=max(0.0, _seconds(real, _GRADING) - _seconds(planned, _GRADING)) / attempts,
    )


def predict(world: CollectionWorld, groups: Groups, seed: int, constants: Constants) -> Collected:
    """`world` with these constants, lived on the virtual clock; close its journal when it was read.

    Example: `predict(world, groups, 0, Constants(turn_s=0.01, boot_s=0.02, grade_s=0.05)).hit_rate`
    """
    sandboxes = world.sandboxes
    boot_s = sandboxes.times.boot_s
    forked = max(constants.boot_s, boot_s.median)
    times = sandboxes.times.model_copy(
        update={
            "boot_s": boot_s.model_copy(update={"median": forked, "cap": max(forked, boot_s.cap)}),
            "command_s": constants.turn_s,
            "snapshot_s": 0.0,
        }
    )
    simulated_s = constants.turn_s + (forked if sandboxes.verify == "fork" else 0.0)  # a command, and a fork for it
    grade_s = max(0.0, constants.grade_s - simulated_s)
    slower = tuple(tuple(replace(p, verify_s=p.verify_s + grade_s) for p in siblings) for siblings in groups)
    return simulate(world.with_(sandboxes={"times": times}), seed, groups=slower)


def without_overhead(times: SandboxTimes) -> SandboxTimes:
    """Nothing that the probe is to find is in the plan already."""
    return times.model_copy(update={"boot_s": Lognormal(median=0.0), "command_s": 0.0, "snapshot_s": 0.0})


def _turns_per_s(world: CollectionWorld, groups: Groups, seed: int) -> float:
    """Over the whole batch, by the plan."""
    with closing(simulate(world, seed, groups=groups).journal) as journal:
        (batch,) = journal.rows(BatchRow)
    return sum(len(p.turns) for siblings in groups for p in siblings) / (batch.ready_at - batch.opened_at)


def _seconds(journal: Journal, stages: Sequence[Stage]) -> float:
    """Of all trajectories, in these stages."""
    owners = {row.id for row in journal.rows(TrajectoryRow)}
    wanted = set(map(str, stages))
    return sum(row.end - row.start for row in journal.rows(SpanRow) if row.owner in owners and row.stage in wanted)
