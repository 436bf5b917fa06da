"""The scheduler: which attempts start now, and what an ended one means for its group.

Law: all decisions about admission, refills, completion, lag and alarms live here. Plain functions on plain
state: no clock, no engine, no sandbox, no event loop. The caller passes the time and does what is returned.

    admit()     consumes free slots and allowed lag      produces launches, started groups first
    ended()     consumes one trajectory                  produces a refill, a ready group, or a dropped one
    assemble()  consumes ready groups                    produces a batch as soon as enough are eligible, and what to
                                                         cancel: live work of groups that no batch can take any more
    published() consumes a version                       unblocks admission

Batch k is trained by version k, and opens when batch k - 1 was assembled. With `max_lag = 0` groups for batch k
are admitted only once version k is published; with `max_lag = n`, once version k - n is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pydantic import BaseModel, ConfigDict, Field, model_validator

from muster.orchestrator.ready_pool import BatchPolicy, ReadyPool
from muster.orchestrator.staleness import allowed
from muster.types import Batch, Graded, Launch, ReadyGroup, Task, Trajectory, Verdict


class SchedulerConfig(BaseModel):
    """How groups become batches."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    groups_per_batch: int = Field(default=8, ge=1, description="complete groups with gradient in a batch")
    group_size: int = Field(default=16, ge=2, description="sibling attempts at one task")
    min_group: int | None = Field(
        default=None, ge=2, description="graded members a group may train with after refills ran out; default: all"
    )
    max_lag: int = Field(
        default=0, ge=0, description="versions a trained token may lie behind the trainer; 0 is on-policy"
    )
    policy: BatchPolicy | None = Field(
        default=None, description="how a batch picks ready groups; default: cohort when max_lag is 0, else window"
    )
    window_fraction: float = Field(
        default=0.3, gt=0, le=1, description="for policy window: share of pending submissions"
    )
    slots: int = Field(default=64, ge=1, description="live trajectories at once")
    max_attempts: int = Field(default=3, ge=1, description="launches of one sibling, infrastructure refills included")
    infra_alarm_rate: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="share of infrastructure failures among recent trajectories that stops admission",
    )
    infra_alarm_window: int = Field(default=64, ge=4, description="recent trajectories that the alarm looks at")

    @model_validator(mode="after")
    def _consistent(self) -> SchedulerConfig:
        if self.min_group is not None and self.min_group > self.group_size:
            raise ValueError(f"min_group ({self.min_group}) is larger than group_size ({self.group_size})")
        return self

    @property
    def batch_policy(self) -> BatchPolicy:
        return self.policy or ("cohort" if self.max_lag == 0 else "window")


class TaskSource(Protocol):
    """Where the next task comes from; `tasks.curriculum` is one."""

    def next(self) -> Task: ...

    def record(self, task_id: str, rewards: Sequence[float]) -> None: ...


@dataclass(slots=True, kw_only=True)
class Group:
    """A group being collected. `members` holds graded siblings; a sibling that is in neither is lost."""

    id: str
    task: Task
    submission: int
    version: int
    replaces: str | None = None
    members: dict[int, Trajectory] = field(default_factory=dict[int, Trajectory])
    launches: dict[int, int] = field(default_factory=dict[int, int])  # of each sibling, so far
    pending: dict[int, Launch] = field(default_factory=dict[int, Launch])  # launched or waiting for a slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """A group ended: `ready` has gradient, else `drop_reason` says why it will not train."""

    group_id: str
    ready: ReadyGroup | None = None
    drop_reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """A batch, if enough groups were eligible; the groups found too stale for it; and launches of these to cancel."""

    batch: Batch | None
    dropped: tuple[Closed, ...] = ()
    cancel: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What to start now: new groups (to be recorded first) and launches, in order."""

    groups: tuple[Group, ...] = ()
    launches: tuple[Launch, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStatistics:
    version: int
    assembled: int  # batches
    live: int  # trajectories
    queued: int  # launches waiting for a slot
    open_groups: int
    ready_groups: int
    alarm: str | None


class Scheduler:
    """Example: `admission = scheduler.admit()`, run the launches, `scheduler.ended(trajectory, launch, now)`."""

    def __init__(self, config: SchedulerConfig, source: TaskSource, *, steps: int) -> None:
        self._config = config
        self._source = source
        self._steps = steps
        self._pool = ReadyPool(
            policy=config.batch_policy,
            window_fraction=config.window_fraction,
            max_lag=config.max_lag,
        )
        self._groups: dict[str, Group] = {}
        self._queue: deque[Launch] = deque()  # started groups' launches waiting for a slot
        self._live: dict[str, Launch] = {}
        self._replace: deque[str] = deque()  # dropped groups whose replacement is not admitted yet
        self._recent: deque[bool] = deque(maxlen=config.infra_alarm_window)  # True: infrastructure failure
        self._submissions = 0
        self._version = 0
        self._assembled = 0
        self._opened_at = 0.0

    # --- events

    def begin(self, now: float) -> None:
        """The run begins, or resumes: the next batch opens."""
        self._opened_at = now

    def admit(self) -> Admission:
        """Start what slots and lag allow. A group starts when all of its siblings can, or when nothing is live."""
        groups: list[Group] = []
        launches = self._fill()
        while not self._queue and self._wanted() > 0 and self._room_for_group():
            groups.append(self._open_group())
            launches += self._fill()
        return Admission(groups=tuple(groups), launches=tuple(launches))

    def ended(self, trajectory: Trajectory, now: float) -> Closed | None:
        """Take in an ended trajectory. Returns what became of its group, if that is now decided."""
        launch = self._live.pop(trajectory.id)
        self._recent.append(trajectory.outcome.verdict is Verdict.INFRA)
        group = self._groups.get(launch.group_id)
        if group is None:
            return None  # dropped while it ended
        del group.pending[launch.sibling]
        if isinstance(trajectory.outcome, Graded):
            group.members[launch.sibling] = trajectory
        elif group.launches[launch.sibling] < self._config.max_attempts:
            self._enqueue(group, launch.sibling, front=True)
        return None if group.pending else self._close(group, now)

    def cancelled(self, launch_id: str) -> None:
        """A launch that `assemble` gave up is gone; its slot is free."""
        self._live.pop(launch_id, None)

    def assemble(self, now: float) -> Assembly:
        """Form the next batch at the instant it becomes possible: call it after every event."""
        step = self._assembled
        doomed = self._give_up(step)
        stale = (*doomed, *(g.id for g in self._pool.expire(step)))
        dropped = tuple(self._dropped(id, "too_stale") for id in stale)
        cancel = tuple(x.id for x in self._live.values() if x.group_id in doomed)
        unresolved = [g.submission for g in self._groups.values()]
        groups = self._pool.take(self._config.groups_per_batch, unresolved=unresolved)
        if groups is None or step >= self._steps:
            return Assembly(batch=None, dropped=dropped, cancel=cancel)
        batch = Batch(step=step, groups=groups, opened_at=self._opened_at, ready_at=now)
        self._assembled += 1
        self._opened_at = now
        return Assembly(batch=batch, dropped=dropped, cancel=cancel)

    def published(self, version: int) -> None:
        """Version `version` serves."""
        assert version > self._version, (version, self._version)
        self._version = version

    def restore(
        self,
        *,
        version: int,
        assembled: int,
        submissions: int,
        ready: Iterable[ReadyGroup],
        groups: Iterable[Group],
        now: float,
    ) -> list[Closed]:
        """Continue a run whose `groups` were open: their missing siblings are launched ahead of new groups.

        The staleness bound is in force from the first step: groups too stale for the next batch are dropped. A
        group whose last member was committed just before the end is closed. Both are returned.
        """
        self._version, self._assembled, self._submissions = version, assembled, submissions
        closed: list[Closed] = []
        for group in ready:
            self._pool.add(group)
        for group in groups:
            if not allowed(group.members.values(), assembled, max_lag=self._config.max_lag):
                closed.append(self._dropped(group.id, "too_stale"))
                continue
            self._groups[group.id] = group
            for sibling in range(self._config.group_size):
                if sibling not in group.members:
                    self._enqueue(group, sibling)
            if not group.pending:
                closed.append(self._close(group, now))
        return closed

    # --- reading

    @property
    def alarm(self) -> str | None:
        """Why admission is stopped; None while all is well."""
        recent = self._recent
        if len(recent) < self._config.infra_alarm_window:
            return None
        rate = sum(recent) / len(recent)
        if rate < self._config.infra_alarm_rate:
            return None
        return f"{rate:.0%} of the last {len(recent)} trajectories failed by infrastructure"

    @property
    def live(self) -> tuple[Launch, ...]:
        return tuple(self._live.values())

    def upcoming(self) -> tuple[Launch, ...]:
        """Launches that wait for a slot: their sandboxes can be made ready."""
        return tuple(self._queue)

    def statistics(self) -> SchedulerStatistics:
        return SchedulerStatistics(
            version=self._version,
            assembled=self._assembled,
            live=len(self._live),
            queued=len(self._queue),
            open_groups=len(self._groups),
            ready_groups=len(self._pool),
            alarm=self.alarm,
        )

    # --- decisions

    def _wanted(self) -> int:
        """Groups to admit now, so that all batches within the allowed lag can be filled and none beyond."""
        if self.alarm:
            return 0
        horizon = min(self._version + self._config.max_lag + 1, self._steps)
        needed = (horizon - self._assembled) * self._config.groups_per_batch
        return needed - len(self._pool) - len(self._groups)

    def _room_for_group(self) -> bool:
        return not self._live or self._config.slots - len(self._live) >= self._config.group_size

    def _give_up(self, step: int) -> list[str]:
        """Open groups with a graded member too old for batch `step`: the others would be sampled for nothing."""
        max_lag = self._config.max_lag
        doomed = [g.id for g in self._groups.values() if not allowed(g.members.values(), step, max_lag=max_lag)]
        if doomed:
            self._queue = deque(x for x in self._queue if x.group_id not in doomed)
        for id in doomed:
            del self._groups[id]
        return doomed

    def _open_group(self) -> Group:
        task = self._source.next()
        group = Group(
            id=f"g{self._submissions:06d}",
            task=task,
            submission=self._submissions,
            version=self._version,
            replaces=self._replace.popleft() if self._replace else None,
        )
        self._submissions += 1
        self._groups[group.id] = group
        for sibling in range(self._config.group_size):
            self._enqueue(group, sibling)
        return group

    def _enqueue(self, group: Group, sibling: int, *, front: bool = False) -> None:
        attempt = group.launches.get(sibling, 0)
        suffix = f"a{attempt}" if attempt else ""
        launch = Launch(
            id=f"{group.id}.{sibling}{suffix}",
            group_id=group.id,
            task=group.task,
            sibling=sibling,
            attempt=attempt,
        )
        group.launches[sibling] = attempt + 1
        group.pending[sibling] = launch
        if front:
            self._queue.appendleft(launch)
        else:
            self._queue.append(launch)

    def _fill(self) -> list[Launch]:
        launches: list[Launch] = []
        while self._queue and len(self._live) < self._config.slots and not self.alarm:
            launch = self._queue.popleft()
            self._live[launch.id] = launch
            launches.append(launch)
        return launches

    def _close(self, group: Group, now: float) -> Closed:
        """Every sibling is graded or lost for good."""
        del self._groups[group.id]
        members = tuple(group.members[s] for s in sorted(group.members))
        if len(members) < (self._config.min_group or self._config.group_size):
            return self._dropped(group.id, "short")
        ready = ReadyGroup(
            id=group.id, task_id=group.task.id, submission=group.submission, members=members, ready_at=now
        )
        self._source.record(group.task.id, ready.rewards)
        if not ready.has_gradient:
            return self._dropped(group.id, "no_gradient")
        self._pool.add(ready)
        return Closed(group_id=group.id, ready=ready)

    def _dropped(self, group_id: str, reason: str) -> Closed:
        self._replace.append(group_id)
        return Closed(group_id=group_id, drop_reason=reason)
