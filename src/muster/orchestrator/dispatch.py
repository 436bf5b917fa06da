"""Dispatch: every launch is written down when it starts and when it ends, whoever asked for it.

    launch row ─► [its sibling's keep point ─►] attempt runs ─► trajectory row        (or, cancelled by us: drop row)

Law: nothing dispatched disappears. A trajectory is committed before `run` returns it to be counted. Every launch counts
the tokens that were sampled for it alone: those of a keep point belong to the attempt that reached it.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from typing import Any, Protocol

from muster import clock
from muster.journal import DropRow, Journal, LaunchRow, Purpose
from muster.orchestrator.keeps import Fresh, Keeps
from muster.rollout.spans import SpanRecorder
from muster.types import Launch, Trajectory


class Attempts(Protocol):
    """Runs one attempt to its end; `rollout.attempt.Rollout` does. Never raises for what the world did."""

    async def run(self, launch: Launch, spans: SpanRecorder, seed: int | None = None) -> Trajectory: ...


class Dispatcher:
    """Runs and records attempts; knows what is live. Without `keeps`, every attempt begins at the beginning."""

    def __init__(self, journal: Journal, attempts: Attempts, keeps: Keeps | None = None) -> None:
        self._journal = journal
        self._attempts = attempts
        self._keeps = keeps
        self._live: dict[str, SpanRecorder] = {}
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self._reasons: dict[str, str] = {}

    async def run(
        self, launch: Launch, purpose: Purpose, seed: int, *, fresh: Fresh = lambda version: True
    ) -> Trajectory:
        """`fresh`: whether tokens of a version may still be trained; a keep point with older ones is not used."""
        keeps = self._keeps if purpose == "train" else None
        spans = self._live[launch.id] = SpanRecorder(launch.id)
        task = asyncio.current_task()
        assert task is not None
        self._tasks[launch.id] = task
        self._journal.record(_launch_row(launch, spans.started, purpose))
        try:
            if keeps is not None:
                launch = await keeps.begin(launch, fresh)
            trajectory = await self._attempts.run(launch, spans, seed)
            self._journal.record_trajectory(trajectory, sibling=launch.sibling, purpose=purpose)
        except asyncio.CancelledError:
            reason = self._reasons.pop(launch.id, None)
            self._journal.record(_drop_row(launch, reason or "stopped", spans))
            if keeps is not None:
                keeps.cancelled(launch, given_up=reason is not None)
            raise
        finally:
            del self._live[launch.id], self._tasks[launch.id]
        if keeps is not None:
            keeps.ended(launch, trajectory)
            await keeps.tidy()
        return trajectory

    def cancel(self, launch_id: str, reason: str) -> None:
        """Cancel the task that runs this launch; it ends as a drop row with `reason`. Nothing if it has ended."""
        if launch_id in self._tasks:
            self._reasons[launch_id] = reason
            self._tasks[launch_id].cancel()

    def forget(self, group_id: str) -> None:
        """The group has ended: no sibling of it is continued."""
        if self._keeps is not None:
            self._keeps.forget(group_id)

    async def finish(self) -> None:
        """The run is done: give back all that was kept."""
        if self._keeps is not None:
            await self._keeps.finish()

    def stages(self) -> Counter[str]:
        """Live trajectories by the stage they are in."""
        return Counter(str(r.current) for r in self._live.values())


def derived_seed(seed: int, name: str) -> int:
    """A seed of its own for each name, the same in every process."""
    return zlib.crc32(f"{seed}/{name}".encode())


def _drop_row(launch: Launch, reason: str, spans: SpanRecorder) -> DropRow:
    return DropRow(
        id=launch.id,
        reason=reason,
        at=clock.now(),
        sampled_tokens=spans.sampled_tokens,
        kept_tokens=launch.kept.sampled_tokens if launch.kept else 0,
    )


def _launch_row(launch: Launch, now: float, purpose: Purpose) -> LaunchRow:
    return LaunchRow(
        id=launch.id,
        group_id=launch.group_id,
        task_id=launch.task.id,
        sibling=launch.sibling,
        attempt=launch.attempt,
        at=now,
        purpose=purpose,
    )
