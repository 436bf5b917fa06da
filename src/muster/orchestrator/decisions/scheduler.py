"""The scheduler: which attempts start now, and what an ended one means for its group.

Law: all decisions about admission, refills, completion, lag and alarms live here. Plain functions on plain
state: no clock, no engine, no sandbox, no event loop. The caller passes the time and does what is returned.

    admit()      consumes free slots and allowed lag      produces launches, in the order of the line
    ended()      consumes one trajectory                  produces a refill, a ready group, or a dropped one
    assemble()   consumes ready groups                    produces a batch as soon as enough are eligible, and what to
                                                          cancel: live work of groups that no batch will take
    give_back()  consumes batches that are not trained    returns their groups to the pool, but for the refused ones
    published()  consumes a version                       unblocks admission

Batch k is trained by version k, and opens when batch k - 1 was assembled. With `max_lag = 0` groups for batch k
are admitted only once version k is published; with `max_lag = n`, once version k - n is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from muster.engine.port import EngineStatistics
from muster.orchestrator.config import SchedulerConfig
from muster.orchestrator.decisions.concurrency import Concurrency
from muster.orchestrator.decisions.demand import Demand
from muster.orchestrator.decisions.drift import Odometer
from muster.orchestrator.decisions.expectation import Expectation, own_s
from muster.orchestrator.decisions.groups import Admission, Assembly, Closed, Group, SchedulerStatistics
from muster.orchestrator.decisions.launch_queue import LaunchQueue
from muster.orchestrator.decisions.ready_pool import ReadyPool
from muster.orchestrator.decisions.reuse import ReuseStore, joined
from muster.orchestrator.decisions.staleness import Freshness
from muster.rollout.keeping import reached_s
from muster.types import Batch, Graded, Launch, ReadyGroup, Task, Trajectory, Verdict

_REUSE = "replay"
"""Under this name the state of reuse is recorded, as it was called before 0.2."""


class TaskSource(Protocol):
    """Source of the next task; `tasks.curriculum` is one."""

    def next(self) -> Task: ...

    def record(self, task_id: str, rewards: Sequence[float]) -> None: ...


class Scheduler:
    """Scheduler of attempts, groups and batches.

    Example: `admission = scheduler.admit()`, run the launches, `scheduler.ended(trajectory, launch, now)`.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        source: TaskSource,
        *,
        steps: int,
        expectation: Expectation | None = None,
        grader: str = "",
    ) -> None:
        """expectation: what is known of the tasks' times before the first attempt. grader: names what grades beside the
        tasks' own tests; what another one graded is not reused.
        """
        self._config = config
        self._source = source
        self._steps = steps
        self._grader = grader
        self._freshness = Freshness(config.max_lag, config.max_divergence)
        self._pool = ReadyPool(
            policy=config.batch_policy, window_fraction=config.window_fraction, freshness=self._freshness
        )
        self._line = LaunchQueue(config.order)
        self._demand = Demand(config)
        self._concurrency = Concurrency(config.concurrency, config.slots)
        self._expectation = expectation or Expectation()
        self._reuse = ReuseStore(config.reuse, per_batch=config.groups_per_batch * config.group_size)
        self._groups: dict[str, Group] = {}  # open ones, in order of submission
        self._live: dict[str, Launch] = {}
        self._replace: deque[str] = deque()  # dropped groups whose replacement is not admitted yet
        self._suspects: dict[str, Group] = {}  # open groups that may have become too stale since the last look
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
        """Start what slots and lag allow. A free slot never waits: the next group starts when the line is empty."""
        groups: list[Group] = []
        launches = self._fill()
        while self._wanted() > 0 and (self._config.order != "group" or self._free() > 0):
            groups.append(self._open_group())
            if self._config.order == "group":
                launches += self._fill()
        return Admission(groups=tuple(groups), launches=tuple(launches + self._fill()))

    def ended(self, trajectory: Trajectory, now: float) -> Closed | None:
        """Take in an ended trajectory. Returns what became of its group, if that is now decided."""
        launch = self._live.pop(trajectory.id)
        self._recent.append(trajectory.outcome.verdict is Verdict.INFRA)
        group = self._groups.get(launch.group_id)
        if isinstance(trajectory.outcome, Graded):
            self._expectation.took(launch.task.id, own_s(trajectory))
            self._concurrency.ended(sum(len(s.tokens_T) for s in trajectory.segments))
        if group is None:
            return None  # dropped while it ended
        del group.pending[launch.sibling]
        if isinstance(trajectory.outcome, Graded):
            group.graded(launch.sibling, trajectory)
            self._suspects[group.id] = group
        else:
            group.lost(launch.sibling, reached_s(trajectory.outcome.evidence))
            if group.fruitless.get(launch.sibling, 0) < self._config.max_attempts:
                self._enqueue(group, launch.sibling)
        return None if group.pending else self._close(group, now)

    def cancelled(self, launch_id: str) -> None:
        """A launch that `assemble` gave up is gone; its slot is free."""
        self._live.pop(launch_id, None)

    def assemble(self, now: float) -> Assembly:
        """Form the next batch at the instant it becomes possible: call it after every event."""
        step = self._assembled
        reasons = {**self._too_stale(step), **self._expired(step)}
        dropped = [self._dropped(id, reason) for id, reason in reasons.items()]
        groups = None
        if step < self._steps:
            oldest = next((g.submission for g in self._groups.values()), None)
            count = self._config.groups_per_batch
            groups = self._pool.take(count, oldest_open=oldest, open_groups=len(self._groups))
        batch = None
        if groups is not None:
            batch = Batch(step=step, groups=groups, opened_at=self._opened_at, ready_at=now)
            surplus = self._opened(step + 1, now)
            dropped += [Closed(group_id=id, drop_reason=reason) for id, reason in surplus.items()]
            reasons |= surplus
        if reasons:
            self._line.drop(reasons)
        cancel = {x.id: reasons[x.group_id] for x in self._live.values() if x.group_id in reasons} if reasons else {}
        return Assembly(batch=batch, dropped=tuple(dropped), cancel=cancel)

    def give_back(self, batches: Sequence[Batch], refused: Mapping[str, str]) -> tuple[Closed, ...]:
        """Batches, in order, that were assembled and will not be trained as they are: the first of them opens again.

        `refused`: group id -> why it may not train; such groups are dropped and replaced, the others are ready again.
        """
        assert batches, "there is something to give back"
        self._assembled, self._opened_at = batches[0].step, batches[0].opened_at
        closed: list[Closed] = []
        for group in (g for batch in batches for g in batch.groups):
            if group.id in refused:
                self._reuse.settled(group, dropped=refused[group.id])
                closed.append(self._dropped(group.id, refused[group.id]))
            else:
                self._pool.add(group)
        return tuple(closed)

    def trained(self, batch: Batch) -> None:
        """A step was made on it."""
        for group in batch.groups:
            self._reuse.settled(group)

    def forget(self, task_id: str) -> None:
        """The task is not trusted any more: what was learned from attempts at it is not used."""
        self._reuse.forget(task_id)

    def published(self, version: int) -> None:
        """Version `version` serves."""
        assert version > self._version, (version, self._version)
        self._version = version

    def moved(self, version: int, rms: float | None) -> None:
        """The step that made `version` moved the policy by `rms` (see `drift`); None: nobody measured it."""
        self._freshness.moved(version, rms)
        self._suspects = dict(self._groups)

    def observe(self, statistics: Sequence[EngineStatistics], now: float) -> None:
        """Take in what the engines say of themselves: how many trajectories their cache can hold."""
        self._concurrency.observe(statistics, live=len(self._live), now=now)

    def restore(
        self,
        *,
        version: int,
        assembled: int,
        submissions: int,
        ready: Iterable[ReadyGroup],
        groups: Iterable[Group],
        now: float,
        put_off: Iterable[tuple[str, Task]] = (),
        odometer: Odometer | None = None,
        state: Mapping[str, Any] | None = None,
        load: Callable[[str], Trajectory] | None = None,
    ) -> list[Closed]:
        """Continue a run whose `groups` were open: their missing siblings are launched ahead of new groups.

        The staleness bound is in force from the first step: groups too stale for the next batch are dropped. A
        group whose last member was committed just before the end is closed. Both are returned. `state` is what
        `state()` gave; `load` reads a trajectory that it names.
        """
        ready = tuple(ready)
        self._version, self._assembled, self._submissions = version, assembled, submissions
        self._demand.restore(put_off)
        if odometer is not None:
            self._freshness.odometer = odometer
        if state is not None:
            self._expectation.restore(state["expectation"])
            if load is not None:
                self._reuse.restore(state[_REUSE], load, ready)
        closed: list[Closed] = []
        for group in ready:
            self._pool.add(group)
        for group in groups:
            reason = self._freshness.verdict(group.oldest if group.oldest is not None else assembled, assembled)
            if reason is not None:
                closed.append(self._dropped(group.id, reason))
                continue
            self._groups[group.id] = group
            for sibling in range(self._config.group_size):
                if sibling not in group.members:
                    self._enqueue(group, sibling)
            if not group.pending:
                closed.append(self._close(group, now))
        self._suspects = dict(self._groups)
        return closed

    # --- reading

    def stale(self, batch: Batch) -> dict[str, str]:
        """Groups of an assembled batch that are too far from the trainer by now, with the reason."""
        step, fresh = batch.step, self._freshness
        reasons = {g.id: fresh.reason(g.fresh, step) or self._reuse.reason(g, step, fresh) for g in batch.groups}
        return {id: reason for id, reason in reasons.items() if reason is not None}

    def fresh(self, version: int) -> bool:
        """Whether tokens of `version` may still join the next batch."""
        return self._freshness.verdict(version, self._assembled) is None

    @property
    def alarm(self) -> str | None:
        """Reason why admission is stopped; None while all is well."""
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

    def upcoming(self, count: int) -> tuple[Launch, ...]:
        """The next launches that wait for a slot: their sandboxes can be made ready."""
        return self._line.first(count)

    def state(self) -> dict[str, Any]:
        """State of what it learned of tasks, as plain JSON data; groups and batches are in the journal."""
        return {"expectation": self._expectation.state(), _REUSE: self._reuse.state()}

    def statistics(self) -> SchedulerStatistics:
        return SchedulerStatistics(
            version=self._version,
            assembled=self._assembled,
            live=len(self._live),
            limit=self._concurrency.limit,
            queued=len(self._line),
            open_groups=len(self._groups),
            ready_groups=len(self._pool),
            alarm=self.alarm,
        )

    # --- decisions

    def _wanted(self) -> int:
        """Groups to admit now, so that all batches within the allowed lag can be filled and none beyond."""
        if self.alarm:
            return 0
        return self._demand.groups(self._batches) - len(self._pool) - len(self._groups)

    @property
    def _batches(self) -> int:
        """That are open, and may be collected for with the version that serves."""
        return min(self._freshness.reach(self._version) + 1, self._steps) - self._assembled

    def _free(self) -> int:
        """Slots that nothing uses or waits for."""
        return self._concurrency.limit - len(self._live) - len(self._line)

    def _too_stale(self, step: int) -> dict[str, str]:
        """Close open groups with a graded member too old for batch `step`: the others would be sampled for nothing."""
        suspects, self._suspects = self._suspects, {}
        found: dict[str, str] = {}
        for group in suspects.values():
            reason = None if group.oldest is None else self._freshness.verdict(group.oldest, step)
            if reason is not None and self._groups.pop(group.id, None) is not None:
                found[group.id] = reason
        return found

    def _expired(self, step: int) -> dict[str, str]:
        """Ready groups too old for batch `step`, with the reason."""
        found: dict[str, str] = {}
        for group, reason in self._pool.expire(step):
            self._reuse.settled(group, dropped=reason)
            found[group.id] = reason
        return found

    def _opened(self, step: int, now: float) -> dict[str, str]:
        """Batch `step` opens. Returns the groups that were launched beyond the need of the one before, with why."""
        self._assembled, self._opened_at = step, now
        self._suspects = dict(self._groups)
        surplus = self._demand.surplus(self._batches, ready=self._pool.groups, open=self._groups.values())
        for group, reason in surplus:
            if isinstance(group, ReadyGroup):
                self._pool.remove(group)
                self._reuse.settled(group, dropped=reason)
            else:
                del self._groups[group.id]
        self._demand.opened()
        return {group.id: reason for group, reason in surplus}

    def _open_group(self) -> Group:
        put_off = self._demand.next_put_off()
        if put_off is not None:
            replaces, task = put_off
        else:
            replaces, task = (self._replace.popleft() if self._replace else None), self._source.next()
        group = Group(
            id=f"g{self._submissions:06d}",
            task=task,
            submission=self._submissions,
            version=self._version,
            replaces=replaces,
        )
        self._submissions += 1
        for sibling in range(self._config.group_size):
            self._enqueue(group, sibling)
        self._groups[group.id] = group
        return group

    def _enqueue(self, group: Group, sibling: int) -> None:
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
        ahead = (len(self._pool) + len(self._groups)) // self._config.groups_per_batch
        self._line.add(
            launch,
            batch=self._assembled + ahead,
            submission=group.submission,
            expected_s=self._expectation.of(group.task.id),
        )

    def _fill(self) -> list[Launch]:
        launches: list[Launch] = []
        while len(self._line) and len(self._live) < self._concurrency.limit and not self.alarm:
            launch = self._line.pop()
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
        self._reuse.closed(ready, grader=self._grader + group.task.digest)
        old = self._reuse.for_group(ready, self._assembled, self._freshness)
        ready = ready if old is None else joined(ready, old)
        if not ready.has_gradient:
            self._reuse.settled(ready, dropped="no_gradient")
            return self._dropped(group.id, "no_gradient")
        self._pool.add(ready)
        return Closed(group_id=group.id, ready=ready)

    def _dropped(self, group_id: str, reason: str) -> Closed:
        self._replace.append(group_id)
        return Closed(group_id=group_id, drop_reason=reason)
