"""One attempt at a task, from sandbox to outcome.

    lease ─► agent plays ─► freeze ─► give the sandbox back ─► verifier grades a fork ─► Trajectory

Law: this is where a boundary error becomes an outcome. Nothing is graded that did not happen: an attempt whose
machinery failed ends INFRA or UNKNOWN, with its evidence and with the tokens it had.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from muster import clock
from muster.errors import MusterError, SandboxLost, boundary
from muster.rollout.agent import Agent, Episode
from muster.rollout.spans import SpanRecorder
from muster.sandbox.pool import Pool, Wanted
from muster.sandbox.port import Snapshot
from muster.types import Launch, Outcome, Session, Stage, Trajectory
from muster.verifier.attribution import after_loss, after_rollout
from muster.verifier.port import Verifier


@dataclass(slots=True)
class _Progress:
    """What is known of an attempt so far; kept when it fails halfway."""

    episode: Episode
    snapshots: tuple[str, ...] = ()


class Rollout:
    """Runs attempts. Any number at once."""

    def __init__(self, *, agent: Agent, pool: Pool, verifier: Verifier) -> None:
        self._agent = agent
        self._pool = pool
        self._verifier = verifier
        self._prepared: dict[str, Snapshot] = {}  # by task digest

    def prefetch(self, launches: Sequence[Launch]) -> None:
        """Have sandboxes started for launches that will come next, where their image is built already."""
        self._pool.prefetch(
            [
                Wanted(snapshot=snapshot, limits=launch.task.limits)
                for launch in launches
                if (snapshot := self._prepared.get(launch.task.digest)) is not None
            ]
        )

    async def run(self, launch: Launch, spans: SpanRecorder, seed: int | None = None) -> Trajectory:
        """Never raises for what the world did; that is the trajectory's outcome."""
        progress = _Progress(self._agent.begin(launch.task))
        try:
            outcome = await self._run(launch, spans, seed, progress)
        except SandboxLost as error:
            outcome = after_loss(error)
        except (MusterError, OSError, TimeoutError) as error:
            outcome = boundary(error)
        recorded = spans.finish()
        return Trajectory(
            id=launch.id,
            group_id=launch.group_id,
            task_id=launch.task.id,
            attempt=launch.attempt,
            segments=(progress.episode.transcript.segment(),),
            turns=tuple(progress.episode.turns),
            spans=recorded,
            outcome=outcome,
            started=spans.started,
            ended=recorded[-1].end if recorded else spans.started,
            snapshots=progress.snapshots,
        )

    async def _run(self, launch: Launch, spans: SpanRecorder, seed: int | None, progress: _Progress) -> Outcome:
        task = launch.task
        pristine = self._prepared[task.digest] = await self._pool.backend.prepare(task.image)
        progress.snapshots = (pristine.id,)
        spans.enter(Stage.SANDBOX_QUEUE)
        asked = clock.now()
        async with self._pool.lease(pristine, task.limits, launch.id) as lease:
            spans.enter(Stage.SANDBOX_START, at=asked + lease.queued_s)
            session = Session(id=launch.id, group=launch.group_id)
            budget = await self._agent.play(task, progress.episode, lease.sandbox, session, spans, seed)
            spans.enter(Stage.VERIFY)
            final = await lease.sandbox.snapshot()
        progress.snapshots = (pristine.id, final.id)
        try:
            spans.enter(Stage.VERIFIER_QUEUE)
            asked = clock.now()
            outcome = await self._verifier.grade(task, final, pristine)
            spans.enter(Stage.VERIFY, at=asked + float(outcome.evidence.get("queued_s", 0.0)))
            return after_rollout(outcome, budget=budget)
        finally:
            await self._pool.backend.discard(final)
