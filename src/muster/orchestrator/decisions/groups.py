"""Groups, launches and decisions: what the scheduler decides about, and says. Law: data; only `Group` changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from muster.types import Batch, Launch, ReadyGroup, Task, Trajectory


@dataclass(slots=True, kw_only=True)
class Group:
    """A group being collected. `members` holds graded siblings; a sibling that is in neither is lost.

    `fruitless`: launches of each sibling that ended ungraded and got no further than one before; `reached_s`: how far
    the others got, in the model's own time. `oldest`: version of the oldest sampled token of the members; None while
    nothing was sampled.
    """

    id: str
    task: Task
    submission: int
    version: int
    replaces: str | None = None
    members: dict[int, Trajectory] = field(default_factory=dict[int, Trajectory])
    launches: dict[int, int] = field(default_factory=dict[int, int])  # of each sibling, so far
    pending: dict[int, Launch] = field(default_factory=dict[int, Launch])  # launched or waiting for a slot
    fruitless: dict[int, int] = field(init=False, default_factory=dict[int, int])
    reached_s: dict[int, float] = field(init=False, default_factory=dict[int, float])
    oldest: int | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        for member in self.members.values():
            self._aged(member)

    def graded(self, sibling: int, member: Trajectory) -> None:
        self.members[sibling] = member
        self._aged(member)

    def lost(self, sibling: int, reached_s: float) -> None:
        """A launch ended ungraded. `reached_s`: the model's own time at its last keep point; 0: it made none."""
        if reached_s > self.reached_s.get(sibling, 0.0):
            self.reached_s[sibling] = reached_s
        else:
            self.fruitless[sibling] = self.fruitless.get(sibling, 0) + 1

    def _aged(self, member: Trajectory) -> None:
        version = member.oldest_version
        if version is not None and (self.oldest is None or version < self.oldest):
            self.oldest = version


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """A group ended: `ready` has gradient, else `drop_reason` says why it will not train."""

    group_id: str
    ready: ReadyGroup | None = None
    drop_reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """A batch, if enough groups were eligible; the groups that no batch will take; and launches of these to cancel.

    `cancel`: launch id -> the reason why its group was dropped.
    """

    batch: Batch | None
    dropped: tuple[Closed, ...] = ()
    cancel: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Admissions to start now: new groups (to be recorded first) and launches, in order."""

    groups: tuple[Group, ...] = ()
    launches: tuple[Launch, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStatistics:
    """A frozen snapshot. `limit`: live trajectories allowed now, at most the slots."""

    version: int
    assembled: int  # batches
    live: int  # trajectories
    limit: int
    queued: int  # launches waiting for a slot
    open_groups: int
    ready_groups: int
    alarm: str | None
