"""One attempt at a task, from sandbox to outcome.

    lease ─► [set up ─►] agent plays ─► freeze ─► verifier grades a fork ─► Outcome ─► Trajectory
      ▲        ▲                                      │ a task of steps: good enough, budget left
      │        └───────── the next instruction ◄──────┘        the last step: the sandbox is given back first
      └ of the image, or of the state at a keep point, with the tokens that led there

Law: this is where a boundary error becomes an outcome. Nothing is graded that did not happen: an attempt whose
machinery failed ends INFRA or UNKNOWN, with its evidence and with the tokens it had.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from muster import clock
from muster.errors import MusterError, SandboxError, SandboxLost, SandboxStartError, boundary
from muster.rollout import preparation
from muster.rollout.keeping import Keeper, KeepPoints, continued, with_points
from muster.rollout.port import Episode, Player
from muster.rollout.renderer import Transcript
from muster.rollout.spans import SpanRecorder
from muster.sandbox.pool.pool import Lane, Lease, Pool, Wanted
from muster.sandbox.port import Counters, Sandbox, Snapshot
from muster.types import Cause, Launch, Outcome, Session, Span, Stage, Task, TaskStep, Trajectory, Ungraded, Verdict
from muster.verifier import steps
from muster.verifier.attribution import after_loss, after_rollout
from muster.verifier.port import Verifier
from muster.verifier.steps import Grade

_NOT_YET = Ungraded(verdict=Verdict.UNKNOWN, cause=Cause.EVIDENCE_MISSING)
"""The outcome of a trajectory that is not over."""


class Rollout:
    """Runs attempts. Any number at once.

    released: called with its session once an attempt has ended, however: nothing more is sampled for it.
    keeper: takes the keep points; without one every attempt begins at the beginning.
    """

    def __init__(
        self,
        *,
        agent: Player,
        pool: Pool,
        verifier: Verifier,
        released: Callable[[Session], None] = lambda session: None,
        keeper: Keeper | None = None,
    ) -> None:
        self._agent = agent
        self._pool = pool
        self._verifier = verifier
        self._released = released
        self._keeper = keeper
        self._prepared: dict[str, Snapshot] = {}  # by task digest

    def prefetch(self, launches: Sequence[Launch]) -> None:
        """Have sandboxes started for launches that will come next, where their image is built already."""
        self._pool.prefetch(
            Wanted(snapshot=snapshot, limits=launch.task.limits)
            for launch in launches
            if (snapshot := self._prepared.get(launch.task.digest)) is not None
        )

    async def run(self, launch: Launch, spans: SpanRecorder, seed: int | None = None) -> Trajectory:
        """Never raises for what the world did; that is the trajectory's outcome."""
        attempt = _Attempt(
            launch=launch, spans=spans, seed=seed, agent=self._agent, pool=self._pool, verifier=self._verifier,
            keeper=self._keeper, episode=Episode(Transcript(())),
        )  # fmt: skip
        try:
            attempt.episode = continued(launch.kept) if launch.kept else self._agent.begin(launch.task)
            attempt.pristine = await self._pool.backend.prepare(launch.task.image)
            self._prepared[launch.task.digest] = attempt.pristine
            outcome = await attempt.outcome()
        except SandboxLost as error:
            outcome = after_loss(error)
        except (MusterError, OSError, TimeoutError) as error:
            outcome = boundary(error)
        finally:
            self._released(attempt.session)
        return attempt.trajectory(outcome, spans.finish())


@dataclass(slots=True, kw_only=True)
class _Attempt:
    """State of an attempt so far; kept when it fails halfway."""

    launch: Launch
    spans: SpanRecorder
    seed: int | None
    agent: Player
    pool: Pool
    verifier: Verifier
    keeper: Keeper | None
    episode: Episode
    keep_points: KeepPoints | None = None
    pristine: Snapshot | None = None
    frozen: list[Snapshot] = field(default_factory=list[Snapshot])
    grades: list[Grade] = field(default_factory=list[Grade])

    @property
    def session(self) -> Session:
        return Session(id=self.launch.id, group=self.launch.group_id)

    def trajectory(self, outcome: Outcome, spans: Sequence[Span]) -> Trajectory:
        began, made = self.launch.kept, self.keep_points.made if self.keep_points else None
        states = (self.pristine.id if self.pristine else None, began.snapshot if began else None)
        return Trajectory(
            id=self.launch.id,
            group_id=self.launch.group_id,
            task_id=self.launch.task.id,
            attempt=self.launch.attempt,
            segments=(self.episode.transcript.segment(),),
            turns=tuple(self.episode.turns),
            spans=tuple(spans),
            outcome=with_points(outcome, began=began, made=made),
            started=self.spans.started,
            ended=spans[-1].end if spans else self.spans.started,
            snapshots=tuple(id for id in (*states, *(state.id for state in self.frozen)) if id is not None),
        )

    async def outcome(self) -> Outcome:
        """Steps before the last are graded while the sandbox waits; the last one when it was given back."""
        assert self.pristine is not None, "prepared first"
        self.spans.enter(Stage.SANDBOX_QUEUE)
        asked = clock.now()
        try:
            start = await self._start(self.pristine)
            async with self.pool.lease(start, self.launch.task.limits, self.launch.id) as lease:
                self.spans.enter(Stage.SANDBOX_START, at=asked + lease.queued_s)
                try:
                    ended = await self._played(lease, self.pristine)
                except SandboxError as error:
                    error.evidence["counters"] = _known(await lease.sandbox.close())
                    raise
            if not isinstance(ended, _Played):
                return ended
            grade = await self._grade(ended, self.pristine)
            return steps.combine(self.launch.task, self.grades) if self.launch.task.steps else grade.outcome
        finally:
            for state in self.frozen:
                await self.pool.backend.discard(state)

    async def _start(self, pristine: Snapshot) -> Snapshot:
        """Snapshot to fork: the image, or the state at the keep point. Raises `SandboxStartError` if that is gone."""
        kept = self.launch.kept
        if kept is None:
            return pristine
        state = await self.pool.backend.restore(kept.snapshot)
        if state is None:
            raise SandboxStartError(f"{self.launch.id}: the kept state is gone", {"snapshot": kept.snapshot})
        return state

    async def _played(self, lease: Lease, pristine: Snapshot) -> _Played | Outcome:
        """Play all steps: what is left to grade, or the outcome of a task that ended before its last step."""
        task, sandbox = self.launch.task, lease.sandbox
        if not task.steps:
            return await self._play(task, "", lease)
        for index, step in enumerate(task.steps):
            failure = await preparation.prepare(sandbox, step, pristine.workdir, task.image.build_timeout_s)
            if failure is not None:
                return await self._unprepared(step, pristine, failure)
            if index > 0:
                self.agent.instruct(self.episode, step.instruction)
            played = await self._play(steps.as_task(task, step), step.name, lease)
            if index == len(task.steps) - 1 or played.budget is not None:
                return played
            if not steps.goes_on(await self._grade(played, pristine), step):
                return steps.combine(task, self.grades)
            self.spans.enter(Stage.SANDBOX_START)
        raise AssertionError("the last step returns")

    async def _play(self, task: Task, step: str, lease: Lease) -> _Played:
        sandbox = lease.sandbox
        keep_points = self.keep_points = self._keeping(sandbox)

        async def between() -> None:
            if keep_points is not None:
                await keep_points()
            if lease.should_give_way:
                await self._give_way(lease)

        budget = await self.agent.play(task, self.episode, sandbox, self.session, self.spans, self.seed, between)
        self.spans.enter(Stage.VERIFY)
        self.frozen.append(await sandbox.snapshot())
        return _Played(task=task, step=step, state=self.frozen[-1], budget=budget)

    async def _give_way(self, lease: Lease) -> None:
        """Others have had less of the pool: wait for the next turn at it."""
        self.spans.enter(Stage.SANDBOX_QUEUE)
        asked = clock.now()
        if await lease.give_way():
            self.spans.enter(Stage.SANDBOX_START, at=max(asked, clock.now() - lease.start_s))

    def _keeping(self, sandbox: Sandbox) -> KeepPoints | None:
        """A task of several steps has none: what its steps were graded would have to be kept as well."""
        if self.keeper is None or self.launch.task.steps:
            return None
        return KeepPoints(
            keeper=self.keeper,
            launch=self.launch,
            episode=self.episode,
            sandbox=sandbox,
            spans=self.spans,
            last_s=self.episode.spent_s,
        )

    async def _grade(self, played: _Played, pristine: Snapshot) -> Grade:
        self.spans.enter(Stage.VERIFIER_QUEUE)
        asked = clock.now()
        outcome = await self.verifier.grade(played.task, played.state, pristine, self.trajectory(_NOT_YET, ()))
        self.spans.enter(Stage.VERIFY, at=asked + float(outcome.evidence.get("queued_s", 0.0)))
        outcome = after_rollout(outcome, budget=played.budget)
        self.grades.append(
            Grade(step=played.step, outcome=outcome, turns=len(self.episode.turns), budget=played.budget)
        )
        return self.grades[-1]

    async def _unprepared(self, step: TaskStep, pristine: Snapshot, failure: Mapping[str, Any]) -> Outcome:
        task = self.launch.task
        control = None
        if steps.needs_control(self.grades):
            label = f"{self.launch.id}-control"
            async with self.pool.lease(pristine, task.limits, label, lane=Lane.VERIFIER) as lease:
                control = await preparation.prepare(lease.sandbox, step, pristine.workdir, task.image.build_timeout_s)
        return steps.unprepared(task, self.grades, failure, control=control)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Played:
    """A task, or a step of one, that was played and frozen and is to be graded."""

    task: Task
    step: str
    state: Snapshot
    budget: Cause | None


def _known(counters: Counters) -> dict[str, float]:
    return {name: value for name, value in asdict(counters).items() if value is not None}
