"""Many simulations of few worlds, on all cores: each world on the same draws of the work.

    worlds × draws ─► worker processes: simulate ─► Outcome            in order, whichever ends first
                                        ▲     └─ on one machine: who overlapped? slower, and again
                                        └──────────────────────────────────────────────────────┘

Law: a draw's outcome depends on its world, its number and the groups, so that any process gives the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from muster.errors import MusterError, leaves
from muster.journal import BatchRow, DeviceRow, Journal, LaunchRow, TrajectoryRow
from muster.lab.collection.collection import Collected, CollectionWorld, number_of, simulate
from muster.lab.collection.workload import Program, group_programs
from muster.lab.plan.fit.programs import Groups, draw
from muster.lab.plan.fit.sharing import Shares, shares, slowed
from muster.lab.plan.planner import Outcome, devices
from muster.lab.workers import workers


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawWork:
    """Work to play, and on what. `groups`: recorded ones to draw from; None: what each world declares.

    alone: engines and trainer are processes of one machine (`lab.plan.fit.sharing`); a first guess of their shares.
    """

    groups: Groups | None = None
    alone: Shares | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawTask:
    """Draw `number` in `world`, whose first `skipped` batches do not count."""

    world: CollectionWorld
    number: int
    skipped: int


TRIES = 4
"""Simulations of a world whose devices share cores, until their slowness explains itself."""

Failed = str
"""Why a world could not be simulated to its end."""


class Draws:
    """Simulated draws of worlds, each played to its end.

    Example: `with drawing(work, jobs=2) as draws: outcomes = draws.outcomes(world, range(5), skipped=3)`
    """

    def __init__(self, run: Callable[[list[DrawTask]], Iterator[Outcome | Failed]]) -> None:
        self._run = run

    def outcomes(self, world: CollectionWorld, numbers: Sequence[int], *, skipped: int) -> tuple[Outcome, ...] | Failed:
        """Of these draws; a string when one of them failed."""
        (outcomes,) = self.each([world], numbers, skipped=skipped)
        return outcomes

    def each(
        self, worlds: Sequence[CollectionWorld], numbers: Sequence[int], *, skipped: int
    ) -> Iterator[tuple[Outcome, ...] | Failed]:
        """The same of several worlds, one after the other as they are done."""
        results = self._run([DrawTask(world=w, number=n, skipped=skipped) for w in worlds for n in numbers])
        for _ in worlds:
            outcomes = [next(results) for _ in numbers]
            failed = [o for o in outcomes if isinstance(o, Failed)]
            yield failed[0] if failed else tuple(o for o in outcomes if isinstance(o, Outcome))


@contextmanager
def drawing(work: DrawWork, *, jobs: int = 0) -> Generator[Draws]:
    """`jobs`: processes; 0: one for each core, 1: this one."""
    jobs = jobs or os.cpu_count() or 1
    if jobs == 1:
        yield Draws(lambda tasks: map(_Worker(work), tasks))
        return
    with workers(jobs) as pool:
        yield Draws(lambda tasks: pool.map(_Worker(work), tasks))


def play(work: DrawWork, task: DrawTask) -> Outcome | Failed:
    """One draw in one world, in this process."""
    groups = None if work.groups is None else draw(work.groups, task.number, task.world.schedule.group_size)
    try:
        if work.alone is None:
            return _simulated(task.world, task, groups)[0]
        return _sharing(task, groups, work.alone)
    except MusterError as error:
        return str(error)
    except BaseExceptionGroup as error:
        stopped, unknown = error.split(MusterError)
        if unknown is not None or stopped is None:
            raise
        return str(next(leaves(stopped)))


def _sharing(task: DrawTask, groups: Groups | None, guess: Shares) -> Outcome:
    """On one machine: as slow as the overlap that is then simulated explains."""
    outcome, found = _simulated(slowed(task.world, guess), task, groups)
    for _ in range(TRIES - 1):
        if found.close_to(guess):
            break
        guess = found
        outcome, found = _simulated(slowed(task.world, guess), task, groups)
    return outcome


def _simulated(world: CollectionWorld, task: DrawTask, groups: Groups | None) -> tuple[Outcome, Shares]:
    collected = simulate(world, task.number, groups=groups)
    with collected.journal as journal:
        batches = journal.rows(BatchRow)[task.skipped :]
        found = shares(journal.rows(DeviceRow), batches[0].opened_at, batches[-1].ready_at)
        return _outcome(batches, collected, _length_ratio(journal, collected, groups)), found


@dataclass(frozen=True, slots=True)
class _Worker:
    """Worker process, by what it does with a task."""

    work: DrawWork

    def __call__(self, task: DrawTask) -> Outcome | Failed:
        return play(self.work, task)


def _outcome(batches: Sequence[BatchRow], collected: Collected, length_ratio: float) -> Outcome:
    ttb_s = [b.ready_at - b.opened_at for b in batches]
    waits_s = [max(0.0, b.ready_at - b.trainer_free_at) for b in batches]
    return Outcome(
        ttb_p50_s=float(np.median(ttb_s)),
        ttb_mean_s=float(np.mean(ttb_s)),
        trainer_wait_s=float(np.mean(waits_s)),
        device_s=devices(collected.world) * float(np.mean(ttb_s)),
        length_ratio=length_ratio,
    )


def _length_ratio(journal: Journal, collected: Collected, groups: Groups | None) -> float:
    """Sampled tokens of a trained trajectory over those of a launched program, on average. Programs are known whole,
    so that what was cancelled halfway counts with its full length."""
    members = {m for b in journal.rows(BatchRow) for m in b.members}
    trained = [t.sampled_tokens for t in journal.rows(TrajectoryRow) if t.id in members]
    launched = dict.fromkeys(x.task_id for x in journal.rows(LaunchRow))
    programs = [p for id in launched for p in _siblings(collected, groups, number_of(id))]
    return float(np.mean(trained) / np.mean([p.sampled_tokens for p in programs]))


def _siblings(collected: Collected, groups: Groups | None, number: int) -> Sequence[Program]:
    if groups is not None:
        return groups[number % len(groups)]
    return group_programs(collected.world.workload, collected.seed, number)
