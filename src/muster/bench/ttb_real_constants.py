"""What this machine adds to a plan: the constants that turn a declared world into a prediction.

    the first turns of some programs ─┬─ played really ───────────┐
                                      └─ simulated, adding nothing ┴─ what the real ones took longer ─► Constants
    World + Constants ─ simulate ─► predicted TTB

Law: measured on another, smaller batch than the one that is predicted, with as many live attempts. Everything that the
simulation leaves out is in it: HTTP and JSON, shells, forks, the file system, and cores that are busy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from muster.bench.ttb_real_run import Place, collect_real
from muster.bench.ttb_real_words import Groups
from muster.journal import Journal, SpanRow, TrajectoryRow
from muster.sim.collection import Collected, World, simulate
from muster.sim.timed_sandbox import SandboxTimes
from muster.sim.workload import Lognormal
from muster.types import Stage

_TURN = (Stage.ENGINE_QUEUE, Stage.PREFILL, Stage.RECOMPUTE, Stage.DECODE, Stage.TOOL)
_GRADING = (Stage.VERIFIER_QUEUE, Stage.VERIFY)
PROBE_TURNS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Seconds beyond the plan.

    turn_s: of one request and one command. boot_s: a fork. grade_s: freezing, a verifier's fork, its script.
    """

    turn_s: float
    boot_s: float
    grade_s: float


def probe(groups: Groups) -> Groups:
    """The first half of the groups, with the first turns of each program; unsolved ones stay so."""
    chosen = groups[: max(1, len(groups) // 2)]
    return tuple(tuple(replace(p, turns=p.turns[:PROBE_TURNS]) for p in siblings) for siblings in chosen)


def measure_constants(world: World, groups: Groups, seed: int, place: Place) -> Constants:
    """Play the probe in `world`, which should be the one with the most live attempts. Takes seconds, real ones."""
    probed = probe(groups)
    small = world.with_(
        schedule={"groups_per_batch": len(probed)}, sandboxes={"times": without_overhead(world.sandboxes.times)}
    )
    real, planned = collect_real(small, probed, seed, place), simulate(small, seed, groups=probed)
    try:
        return constants_of(real.journal, planned.journal, probed, boot_s=real.boot_s)
    finally:
        real.journal.close()
        planned.journal.close()


def constants_of(real: Journal, planned: Journal, probed: Groups, *, boot_s: float) -> Constants:
    """What `real` took longer than `planned`, both of the attempts in `probed`."""
    turns = sum(len(program.turns) for siblings in probed for program in siblings)
    attempts = sum(map(len, probed))
    return Constants(
        turn_s=max(0.0, _seconds(real, _TURN) - _seconds(planned, _TURN)) / turns,
        boot_s=boot_s,
        grade_s=max(0.0, _seconds(real, _GRADING) - _seconds(planned, _GRADING)) / attempts,
    )


def predict(world: World, groups: Groups, seed: int, constants: Constants) -> Collected:
    """`world` with these constants, lived on the virtual clock."""
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
    grade_s = constants.grade_s if sandboxes.verify == "in_place" else max(0.0, constants.grade_s - forked)
    slower = tuple(tuple(replace(p, verify_s=p.verify_s + grade_s) for p in siblings) for siblings in groups)
    return simulate(world.with_(sandboxes={"times": times}), seed, groups=slower)


def without_overhead(times: SandboxTimes) -> SandboxTimes:
    """Nothing that the probe is to find is in the plan already."""
    return times.model_copy(update={"boot_s": Lognormal(median=0.0), "command_s": 0.0, "snapshot_s": 0.0})


def _seconds(journal: Journal, stages: Sequence[Stage]) -> float:
    """Of all trajectories, in these stages."""
    owners = {row.id for row in journal.rows(TrajectoryRow)}
    wanted = set(map(str, stages))
    return sum(row.end - row.start for row in journal.rows(SpanRow) if row.owner in owners and row.stage in wanted)
