"""Reuse of rare successes: a group that solved nothing may be given an earlier success at the same task.

    a group closes ─closed─► success rate of its task ─ below the threshold, no success of its own ─┐
                                                                                                   ▼
    a group ends ─settled─► its successes are kept ─ within the divergence limit, not too many ─► for_group
                            those it was given are free again (or forgotten: measured as too far)

A task that is solved once in fifty attempts gives groups without gradient, one after the other, and then a single
success that is trained once. Trained again beside fresh failures it tells the policy what to do more of. A failure is
never reused: there is no shortage of them.

Law: pure. Only verified and unflagged successes are kept, of groups that ended; each of them serves in one group at a
time, and a bounded number of times. Nothing is kept of a task that changed or is not trusted any more. A reused
member keeps the log-probabilities and versions of those that sampled it: the correction sees how old it is.

How the advantage sees it: as one more member. The baseline is the mean over all G + 1, so that a group's advantages
still sum to zero: the success is worth G / (G + 1) of its reward and each failure -1 / (G + 1) (in `dr_grpo`). With a
baseline of the fresh members alone the old success would count whole and the failures nothing: all of the gradient
would come from tokens that the present policy did not sample.

Sources: verified successes alone, about 2 old to 16 fresh, only where a fresh group has none: this helped in Zhang et
al. 2025 (RLEP) and Lu et al. 2025 (ARPO); a batch of mostly reused ones, or reused failures, did not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from muster.orchestrator.config import ReuseConfig
from muster.orchestrator.decisions.staleness import Freshness, StaleReason, oldest_version
from muster.types import Cause, Graded, ReadyGroup, Trajectory, Verdict

FLAGGED = (Cause.TAMPERED, Cause.SANDBOX_DESTROYED_BY_AGENT, Cause.VERIFIER_BROKEN_BY_AGENT)
"""Attribution makes failures of these; nothing is trained twice should one ever be called a success."""
EQUAL_REWARDS = 1e-6
"""As in `ReadyGroup.has_gradient`: a success worth no more than the group's own failures teaches nothing."""


@dataclass(slots=True, eq=False)
class _Kept:
    trajectory: Trajectory  # without its turns and spans: only its tokens are used again
    oldest_version: int
    uses: int = 0

    @classmethod
    def of(cls, trajectory: Trajectory, uses: int = 0) -> _Kept:
        version = trajectory.oldest_version
        assert version is not None, trajectory.id
        return cls(replace(trajectory, turns=(), spans=()), version, uses)


@dataclass(slots=True, eq=False)
class _Known:
    """Attempts and successes of one task, as long as the same grades it."""

    grader: str
    recent: deque[bool]  # attempts, True: a success
    kept: list[_Kept] = field(default_factory=list[_Kept])  # oldest first

    @property
    def rate(self) -> float:
        """1 before the first attempt: nothing is reused for want of knowledge."""
        return sum(self.recent) / len(self.recent) if self.recent else 1.0


class ReuseStore:
    """Store of the successes that are kept for reuse; chooses the group that is given one.

    Example:
        store = ReuseStore(config, per_batch=64)
        store.closed(group, grader=task.digest)
        if (old := store.for_group(group, step, freshness)) is not None:
            group = joined(group, old)
        ...
        store.settled(group)  # it was trained; or settled(group, dropped="surplus")
    """

    def __init__(self, config: ReuseConfig, *, per_batch: int) -> None:
        """per_batch: fresh trajectories that a batch needs."""
        self._config = config
        self._room = int(config.max_share * per_batch) if config.enabled else 0
        self._tasks: dict[str, _Known] = {}
        self._lent: dict[str, _Kept] = {}  # to groups that are neither trained nor dropped yet, by trajectory id
        self._graders: dict[str, str] = {}  # of these groups and all others that are not settled

    def closed(self, group: ReadyGroup, *, grader: str) -> None:
        """All fresh members of a group are graded, with gradient or without: they tell the task's success rate.

        grader: digest of the task and its verifier. When it changes, what was known of the task is forgotten.
        """
        if not self._room:
            return
        task = self._tasks.get(group.task_id)
        if task is None or task.grader != grader:
            self.forget(group.task_id)
            task = self._tasks[group.task_id] = _Known(grader, deque(maxlen=self._config.recent_attempts))
        task.recent.extend(_succeeded(member) for member in group.fresh)
        self._graders[group.id] = grader

    def for_group(self, group: ReadyGroup, step: int, freshness: Freshness) -> Trajectory | None:
        """An earlier success for a closed group that has none, to be trained in batch `step` or soon after it.

        It is lent until the group is `settled`. What may be lent at once is what one batch may hold, so that no batch
        holds more, whichever groups it takes.
        """
        if len(self._lent) >= self._room or any(_succeeded(member) for member in group.members):
            return None
        task = self._tasks.get(group.task_id)
        if task is None or task.rate >= self._config.below:
            return None
        best = max(group.rewards)
        candidates = [
            kept
            for kept in reversed(task.kept)
            if kept.trajectory.id not in self._lent
            and kept.uses < self._config.max_uses
            and _reward(kept.trajectory) > best + EQUAL_REWARDS
            and self._near(kept.oldest_version, step, freshness)
        ]
        if not candidates:
            return None
        chosen = min(candidates, key=lambda kept: kept.uses)  # the least used; of these the newest
        self._lent[chosen.trajectory.id] = chosen
        return chosen.trajectory

    def reason(self, group: ReadyGroup, step: int, freshness: Freshness) -> StaleReason | None:
        """Reason why batch `step` may not train on the reused members, as the policy has moved; None if it may."""
        old = [member for member in group.members if member.id in group.reused]
        return None if self._near(oldest_version(old, default=step), step, freshness) else "diverged"

    def settled(self, group: ReadyGroup, dropped: str | None = None) -> None:
        """The group was trained, or dropped for a reason: what it was lent is free, its own successes are kept.

        What was measured as too far from the trainer's policy is not tried again.
        """
        grader, task = self._graders.pop(group.id, None), self._tasks.get(group.task_id)
        for id in group.reused:
            kept = self._lent.pop(id, None)
            if kept is not None and dropped is None:
                kept.uses += 1
            elif dropped == "diverged" and task is not None and kept in task.kept:
                task.kept.remove(kept)
        if task is not None and task.grader == grader and dropped != "diverged":
            self._keep(task, (member for member in group.fresh if _succeeded(member)))

    def forget(self, task_id: str) -> None:
        """The task is not what it was, or its verifier is not trusted any more."""
        self._tasks.pop(task_id, None)

    def state(self) -> dict[str, Any]:
        """State of what it learned, as plain JSON data: names of trajectories, which the journal holds."""
        tasks = {
            id: {
                "grader": task.grader,
                "recent": [int(success) for success in task.recent],
                "kept": [(kept.trajectory.id, kept.uses) for kept in task.kept],
            }
            for id, task in self._tasks.items()
        }
        return {"tasks": tasks, "graders": dict(self._graders)}

    def restore(
        self, state: Mapping[str, Any], load: Callable[[str], Trajectory], waiting: Iterable[ReadyGroup]
    ) -> None:
        """Go on from `state()`. `load` reads a trajectory by its id; `waiting` are ready groups not trained yet."""
        for id, saved in state["tasks"].items():
            kept = [_Kept.of(load(name), uses) for name, uses in saved["kept"]]
            recent = deque(map(bool, saved["recent"]), maxlen=self._config.recent_attempts)
            self._tasks[id] = _Known(saved["grader"], recent, kept)
        reused = {group.id: group.reused for group in waiting}
        self._graders = {id: grader for id, grader in state["graders"].items() if id in reused}
        names = [name for group in reused.values() for name in group]
        every = (kept for task in self._tasks.values() for kept in task.kept)
        self._lent = {kept.trajectory.id: kept for kept in every if kept.trajectory.id in names}

    def _near(self, version: int, step: int, freshness: Freshness) -> bool:
        limit = min(self._config.max_divergence, freshness.max_divergence or self._config.max_divergence)
        return freshness.odometer.distance(version, step) <= limit

    def _keep(self, task: _Known, successes: Iterable[Trajectory]) -> None:
        for member in successes:
            if member.sampled_tokens and member.outcome.cause not in FLAGGED:
                task.kept.append(_Kept.of(member))
        while len(task.kept) > self._config.per_task and self._drop_first([task]):
            pass
        easiest_first = sorted(self._tasks.values(), key=lambda known: -known.rate)
        while sum(len(known.kept) for known in easiest_first) > self._config.capacity:
            if not self._drop_first(easiest_first):
                return

    def _drop_first(self, tasks: Iterable[_Known]) -> bool:
        """Drop the oldest success of the first of these tasks that has one which is not lent."""
        for task in tasks:
            free = next((kept for kept in task.kept if kept.trajectory.id not in self._lent), None)
            if free is not None:
                task.kept.remove(free)
                return True
        return False


def joined(group: ReadyGroup, old: Trajectory) -> ReadyGroup:
    """The group with an earlier success as one more member, the last."""
    return replace(group, members=(*group.members, old), reused=(*group.reused, old.id))


def _succeeded(trajectory: Trajectory) -> bool:
    return trajectory.outcome.verdict is Verdict.SUCCESS


def _reward(trajectory: Trajectory) -> float:
    assert isinstance(trajectory.outcome, Graded), trajectory.id
    return trajectory.outcome.reward
