"""`muster sim`: many seeded worlds, each lived by the real orchestrator under faults, and held against the laws.

    seeds ─► worker processes: scenario ─► World.run ─► WorldResult ─► table by fault, one line for each failing seed

Law: worlds share nothing, so that a failing seed fails alone and again: its line is the command that reproduces it.
The simulation may not see evaluation and reports; here they are put into it, so that they are tried as well.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from muster import clock
from muster.engine.port import Engine
from muster.errors import UserError
from muster.evaluate import Evaluator
from muster.journal import BatchRow, GroupRow, Journal, LaunchRow, SpanRow, TrajectoryRow
from muster.lab.result import BenchResult, Target
from muster.lab.workers import workers
from muster.lab.world.chaos import Fault
from muster.lab.world.laws import Law
from muster.lab.world.life import Evaluate
from muster.lab.world.scenario import scenario
from muster.lab.world.world import Violation, World, WorldResult
from muster.observe.critical_path import batch_time
from muster.orchestrator.config import EvaluateConfig
from muster.orchestrator.dispatch import Dispatcher
from muster.types import Task

SHRUNK = 3
"""Failures of a run whose faults are reduced to what they need; that takes a life of the world for each fault."""
_Name = TypeVar("_Name", Fault, Law)
CAUGHT_WITHIN = 50
"""Worlds in which a law that is broken on purpose must be noticed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimOptions:
    """Options of a simulation.

    `faults`: those that may be at work. `broken`: a law to break on purpose; the run then ends at the first world that
    notices. `jobs`: processes; 0 for one on each core.

    Example: `SimOptions(seeds=2000)`
    """

    seeds: int = 200
    first: int = 0
    jobs: int = 0
    faults: tuple[Fault, ...] = tuple(Fault)
    broken: Law | None = None


def options(*, seeds: int, first: int, jobs: int, faults: Sequence[str] = (), broken: str | None = None) -> SimOptions:
    """From what a user wrote. Raises `UserError` for a name that is none."""
    return SimOptions(
        seeds=seeds,
        first=first,
        jobs=jobs,
        faults=() if list(faults) == ["none"] else tuple(_named(Fault, "fault", n) for n in faults) or tuple(Fault),
        broken=None if broken is None else _named(Law, "law", broken),
    )


def run_simulation(chosen: SimOptions, say: Callable[[str], None]) -> BenchResult:
    """Live all worlds; `say` gets progress, failures and the summary."""
    began = clock.now()
    lives: list[WorldResult] = []
    violations: list[WorldResult] = []
    failures: list[str] = []
    for lived in _results(chosen):
        lives.append(lived)
        if lived.violation is not None:
            violations.append(lived)
            failures.append(_failure(lived, lived.violation, chosen, shrink=len(failures) < SHRUNK))
            say(failures[-1])
            if chosen.broken is not None:
                break
        if len(lives) % max(100, chosen.seeds // 10) == 0:
            say(f"{len(lives)} of {chosen.seeds} worlds, {clock.now() - began:.0f} s")
    wall_s = clock.now() - began
    say(_summary(lives, wall_s))
    return BenchResult(
        name="sim",
        rows=_rows(lives, chosen.faults),
        targets=_targets(chosen, lives, violations),
        notes={
            "seeds": len(lives),
            "first": chosen.first,
            "wall_s": wall_s,
            "cores": os.cpu_count(),
            "virtual_hours": sum(w.virtual_s for w in lives) / 3600,
            "steps": sum(w.steps for w in lives),
            "trajectories": sum(w.trajectories for w in lives),
            "stops": dict(sum((Counter(w.stops) for w in lives), Counter[str]())),
            "violations": failures,
        },
    )


def live(seed: int, faults: Sequence[Fault] = tuple(Fault), broken: Law | None = None) -> WorldResult:
    """One world, in this process. Deterministic: the journal's bytes are those of every other process."""
    world = World(scenario(seed, faults), evaluation, check_times, broken=broken)
    return clock.run_virtual(world.run())


def shrunk(seed: int, law: Law, faults: Sequence[Fault], *, broken: Law | None = None) -> tuple[Fault, ...]:
    """The faults that a failing world needs to break that law: each of the others is left out, one after the other."""
    needed = tuple(faults)
    for fault in faults:
        fewer = tuple(f for f in needed if f != fault)
        violation = live(seed, fewer, broken).violation
        if violation is not None and violation.law is law:
            needed = fewer
    return needed


def check_times(journal: Journal) -> list[str]:
    """Batches whose critical path was not found, or whose parts do not sum to their time."""
    groups, trajectories = journal.rows(GroupRow), journal.rows(TrajectoryRow, "purpose = 'train'")
    launches = {x.id: x for x in journal.rows(LaunchRow, "purpose = 'train'")}
    wrong: list[str] = []
    for batch in journal.rows(BatchRow):
        last = batch_time(batch, groups, launches, trajectories, {}).trajectory
        spans = {} if last is None else {last: journal.rows(SpanRow, "owner = ?", last)}
        time = batch_time(batch, groups, launches, trajectories, spans)
        parts_s = sum(time.parts.values())
        if last is None or abs(parts_s - time.ttb_s) > 1e-6:
            wrong.append(f"batch {batch.step}: parts of {parts_s:.6f} s, TTB {time.ttb_s:.6f} s, last {last}")
    return wrong


def evaluation(journal: Journal, dispatcher: Dispatcher, engine: Engine, tasks: Sequence[Task]) -> Evaluate:
    """The real evaluation, on a world's held-out tasks."""
    return Evaluator(
        EvaluateConfig(retries=1),
        journal=journal,
        dispatcher=dispatcher,
        engine=engine,
        tasks=tasks,
        fingerprint={"engine": "fake"},
        seed=0,
    )


@dataclass(frozen=True, slots=True)
class _Worker:
    """Worker process, by what it does with a seed."""

    faults: tuple[Fault, ...]
    broken: Law | None

    def __call__(self, seed: int) -> WorldResult:
        return live(seed, self.faults, self.broken)


def _results(chosen: SimOptions) -> Iterator[WorldResult]:
    """In order of the seeds, whichever ends first."""
    seeds = range(chosen.first, chosen.first + chosen.seeds)
    worker = _Worker(chosen.faults, chosen.broken)
    jobs = chosen.jobs or os.cpu_count() or 1
    if jobs == 1 or chosen.seeds == 1:
        yield from map(worker, seeds)
        return
    with workers(jobs, _begin_worker) as pool:
        yield from pool.map(worker, seeds, chunksize=4)


def _begin_worker() -> None:
    """A world is thousands of short-lived objects in few cycles: collect rarely."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


def _failure(lived: WorldResult, violation: Violation, chosen: SimOptions, *, shrink: bool) -> str:
    faults = chosen.faults
    if shrink:
        faults = shrunk(lived.seed, violation.law, faults, broken=chosen.broken)
    words = "" if set(faults) == set(Fault) else "".join(f" --faults {f}" for f in faults) or " --faults none"
    broken = f" --break {chosen.broken}" if chosen.broken else ""
    return f"{violation.message}\n  muster sim --first {lived.seed} --seeds 1{words}{broken}"


def _summary(lives: Sequence[WorldResult], wall_s: float) -> str:
    hours = sum(w.virtual_s for w in lives) / 3600
    return (
        f"{len(lives)} worlds of {sum(w.lives for w in lives)} lives: {sum(w.steps for w in lives)} steps, "
        f"{sum(w.trajectories for w in lives)} trajectories, {hours:.0f} virtual hours in {wall_s:.1f} s"
    )


def _rows(lives: Sequence[WorldResult], faults: Sequence[Fault]) -> list[dict[str, str | int | float]]:
    return [
        {
            "fault": str(fault),
            "worlds": sum(1 for w in lives if w.injected.get(fault)),
            "injected": sum(w.injected.get(fault, 0) for w in lives),
        }
        for fault in faults
    ]


def _targets(chosen: SimOptions, lives: Sequence[WorldResult], violations: Sequence[WorldResult]) -> list[Target]:
    if chosen.broken is None:
        return [Target(name="sim_violations", value=len(violations), operator="<=", threshold=0)]
    caught = [w for w in violations if w.violation and w.violation.law is chosen.broken]
    worlds = float(len(lives)) if caught else float("nan")
    return [
        Target(name=f"worlds_until_{chosen.broken}_is_caught", value=worlds, operator="<=", threshold=CAUGHT_WITHIN)
    ]


def _named(kind: type[_Name], what: str, name: str) -> _Name:
    try:
        return kind(name)
    except ValueError:
        raise UserError(f"no {what} {name!r}; there are {', '.join(kind)}") from None
