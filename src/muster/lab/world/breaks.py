"""Laws broken on purpose, to show that the simulation would see it.

Law: each break is a bug that some system really had, put in from outside; production code has no hook for it.

    world ─► settings · scheduler · standing · attempts · journal        each passes through its function here
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np

from muster.journal import Purpose
from muster.lab.world.crashing_journal import CrashingJournal
from muster.lab.world.laws import Law
from muster.orchestrator.decisions.groups import Assembly, Closed
from muster.orchestrator.decisions.reuse import joined
from muster.orchestrator.decisions.scheduler import Scheduler
from muster.orchestrator.dispatch import Attempts
from muster.orchestrator.resume import Standing
from muster.rollout.keeping import KEPT
from muster.rollout.spans import SpanRecorder
from muster.types import Cause, Graded, Launch, Outcome, ReadyGroup, Segment, Trajectory, Verdict

HANGS_EVERY = 12


def settings(broken: Law | None, schedule: dict[str, Any], agent: dict[str, Any]) -> None:
    """A limit that is not the one that was configured."""
    if broken is Law.STALENESS:
        schedule["max_lag"] += 1
        schedule["surplus"] = "carry"  # which any lag allows
    elif broken is Law.SLOTS:
        schedule["slots"] += schedule["group_size"]
    elif broken is Law.DIVERGENCE:
        schedule["max_divergence"] = None
    elif broken is Law.SURPLUS and schedule["policy"] not in ("cohort", "fifo"):
        schedule["over_launch"] += 1.0
    elif broken is Law.BUDGET:
        agent["time_budget_s"] *= 10


def standing(broken: Law | None, here: Standing) -> Standing:
    """Resume forgets the oldest group it should take up."""
    if broken is not Law.LOST:
        return here
    return replace(here, ready=here.ready[1:], groups=here.groups[1:])


class BrokenScheduler(Scheduler):
    """Scheduler as it is; or its batches are short of a member, hold a group of the batch before, or reuse one of its
    members, whatever it was."""

    broken: Law | None = None
    restored = False  # it holds what the journal says; a life that stopped earlier holds nothing
    _before: tuple[ReadyGroup, ...] = ()

    def restore(self, **state: Any) -> list[Closed]:
        self.restored = True
        return super().restore(**state)

    def assemble(self, now: float) -> Assembly:
        assembly = super().assemble(now)
        batch = assembly.batch
        if batch is None:
            return assembly
        groups = batch.groups
        if self.broken is Law.COMPLETE:
            groups = (replace(groups[0], members=groups[0].members[1:]), *groups[1:])
        if self.broken is Law.ONCE and self._before:
            groups = (self._before[0], *groups[1:])
        if self.broken is Law.REUSE and self._before:
            groups = (joined(groups[0], self._before[0].fresh[0]), *groups[1:])
        self._before = batch.groups
        return replace(assembly, batch=replace(batch, groups=groups))


class LossyJournal(CrashingJournal):
    """Does not write down the attempts that were not graded."""

    def record_trajectory(self, trajectory: Trajectory, *, sibling: int, purpose: Purpose) -> None:
        if isinstance(trajectory.outcome, Graded):
            super().record_trajectory(trajectory, sibling=sibling, purpose=purpose)


class BrokenAttempts:
    """Attempts as they are; or they tell something else than what happened, or nothing at all."""

    def __init__(self, inner: Attempts, broken: Law | None) -> None:
        self._inner = inner
        self._broken = broken
        self._count = 0

    async def run(self, launch: Launch, spans: SpanRecorder, seed: int | None = None) -> Trajectory:
        self._count += 1
        if self._broken is Law.LIVENESS and self._count % HANGS_EVERY == 0:
            await asyncio.Event().wait()
        trajectory = await self._inner.run(launch, spans, seed)
        if self._broken is Law.PATIENCE:
            return replace(trajectory, outcome=_without_progress(trajectory.outcome))
        if self._broken is Law.ATTRIBUTION and not isinstance(trajectory.outcome, Graded):
            zero = Graded(verdict=Verdict.FAILURE, reward=0.0, cause=Cause.VERIFIER_FAILED)
            return replace(trajectory, outcome=zero)
        if self._broken is Law.KEPT and launch.kept is not None:
            return replace(trajectory, segments=tuple(_stamped_at_the_end(s) for s in trajectory.segments))
        if self._broken is Law.VERSIONS:
            return replace(trajectory, segments=tuple(_stamped_at_the_end(s) for s in trajectory.segments))
        if self._broken is Law.TTB:
            return replace(trajectory, spans=trajectory.spans[:1] + trajectory.spans[2:])
        if self._broken is Law.CRASH:
            assert trajectory.outcome.verdict is not Verdict.UNKNOWN, "a bug"
        return trajectory


def _without_progress(outcome: Outcome) -> Outcome:
    """As if it had made no keep point, so that it counts against its sibling."""
    return replace(outcome, evidence={name: value for name, value in outcome.evidence.items() if name != KEPT})


def _stamped_at_the_end(segment: Segment) -> Segment:
    """Every token with the version that served when its trajectory returned."""
    newest = np.where(segment.sampled_T, segment.versions_T.max(initial=-1), segment.versions_T)
    return replace(segment, versions_T=newest.astype(np.int32))
