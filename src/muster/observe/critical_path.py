"""Time to trainable batch, every second of it given to one cause.

Law: pure; from rows to parts. The parts tile [open(k), ready(k)) without gap or overlap, so they sum to the TTB.

Read back from ready(k): the group whose end made the batch ready, its sibling that ended last, that sibling's own
spans. That group is the batch's own that became ready last, or, under an ordered batch policy, an older one that
the batch had to wait for and that was dropped in the end. Read forward, the same path is a chain of marks, each
clipped to what is left of the interval:

    open ─admission─► first of the line admitted ─refill─► group admitted ─admission─► first launch ─infra retry─►
         this launch ─admission─► started ─its spans; gaps are assembly─► ended ─assembly─► ready

The line is the group and those it replaces, one after the other (no gradient, too stale): the refill is the time that
went into them. The infra retry covers the attempts of this sibling that infrastructure lost. In a synchronous run
admission holds the trainer's step and the publication; in an asynchronous one much of the path lies before open(k).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from muster.journal import BatchRow, GroupRow, LaunchRow, SpanRow, TrajectoryRow
from muster.observe.intervals import Labelled, flatten, totals
from muster.orchestrator.decisions.demand import PUT_OFF, SURPLUS
from muster.types import Stage

AFTERWARDS = (SURPLUS, PUT_OFF)
"""Drop reasons of groups that were still collected when the batch that they were launched for was ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTime:
    """One batch's TTB. `parts` (seconds by stage) sum to `ttb_s`.

    `begun_at`: when work on it began, its first admission after the opening (or the opening, if that was earlier).
    `trajectory` ended the critical path; None when no member's trajectory was found in the journal.
    """

    step: int
    opened_at: float
    ready_at: float
    trainer_free_at: float
    begun_at: float
    group: str | None
    trajectory: str | None
    pieces: tuple[Labelled[Stage], ...]

    @property
    def ttb_s(self) -> float:
        return self.ready_at - self.opened_at

    @property
    def collected_s(self) -> float:
        """From the first admission to ready: what a lower bound of the work can be held against."""
        return self.ready_at - self.begun_at

    @property
    def trainer_wait_s(self) -> float:
        """Time that the trainer waited: seconds from when it was free until the batch was ready."""
        return max(0.0, self.ready_at - self.trainer_free_at)

    @property
    def parts(self) -> dict[Stage, float]:
        return totals(self.pieces)

    @property
    def felt(self) -> dict[Stage, float]:
        """The parts while the trainer waited; they sum to `trainer_wait_s` unless it was free before the opening."""
        free = self.trainer_free_at
        return totals(Labelled(max(p.start, free), p.end, p.label) for p in self.pieces if p.end > free)


def batch_time(
    batch: BatchRow,
    groups: Iterable[GroupRow],
    launches: Mapping[str, LaunchRow],
    trajectories: Iterable[TrajectoryRow],
    spans: Mapping[str, Sequence[SpanRow]],
) -> BatchTime:
    """Decompose one batch. Each argument may hold more than this batch's rows.

    `launches` are by launch id (equal to the trajectory's), `spans` by trajectory id.
    """
    known = {g.id: g for g in groups}
    group = deciding_group(batch, known.values())
    last = _last_ended(group, trajectories) if group else None
    if group and last:
        line = _line(group, known)
        pieces = _path(batch, line, last, launches, spans.get(last.id, ()))
    else:
        pieces = flatten((), batch.opened_at, batch.ready_at, Stage.ASSEMBLY)
    return BatchTime(
        step=batch.step,
        opened_at=batch.opened_at,
        ready_at=batch.ready_at,
        trainer_free_at=batch.trainer_free_at,
        begun_at=_begun(batch, known),
        group=group.id if group else None,
        trajectory=last.id if last else None,
        pieces=pieces,
    )


def trajectory_time(
    trajectory: TrajectoryRow, launch: LaunchRow | None, spans: Sequence[SpanRow]
) -> dict[Stage, float]:
    """Seconds by stage of one trajectory, from its launch to its end."""
    start = min(launch.at, trajectory.started) if launch else trajectory.started
    waiting = Labelled(start, trajectory.started, Stage.ADMISSION)
    return totals(flatten((waiting, *_pieces(spans)), start, trajectory.ended, Stage.ASSEMBLY))


def deciding_group(batch: BatchRow, groups: Iterable[GroupRow]) -> GroupRow | None:
    """The group whose end was the last that the batch waited for; of two at one instant the batch's own.

    Surplus is no such group: it is dropped because the batch is ready.
    """
    own = set(batch.groups)
    ends = [
        (at, g.id in own, g.submission, g)
        for g in groups
        if (at := g.ready_at if g.id in own else g.closed_at if _held_up(g) else None) is not None
        and at <= batch.ready_at
    ]
    return max(ends, key=lambda e: e[:3])[3] if any(is_own for _, is_own, _, _ in ends) else None


def _held_up(group: GroupRow) -> bool:
    """Whether a batch may have waited for this group, and gone on without it."""
    return group.state == "dropped" and group.drop_reason not in AFTERWARDS


def _last_ended(group: GroupRow, trajectories: Iterable[TrajectoryRow]) -> TrajectoryRow | None:
    own = (t for t in trajectories if t.group_id == group.id)
    return max(own, key=lambda t: (t.ended, t.id), default=None)


def _line(group: GroupRow, groups: Mapping[str, GroupRow]) -> tuple[float, float]:
    """Times at which the first group of the line was admitted, and `group` was. Of a predecessor that is not among
    `groups`, and so ended before the batch opened, the first is taken to be that old.
    """
    first = group
    while first.replaces:
        if first.replaces not in groups:
            return float("-inf"), group.admitted_at
        first = groups[first.replaces]
    return first.admitted_at, group.admitted_at


def _begun(batch: BatchRow, groups: Mapping[str, GroupRow]) -> float:
    first = min((_line(groups[g], groups)[0] for g in batch.groups if g in groups), default=batch.opened_at)
    return min(max(first, batch.opened_at), batch.ready_at)


def _path(
    batch: BatchRow,
    line: tuple[float, float],
    last: TrajectoryRow,
    launches: Mapping[str, LaunchRow],
    spans: Sequence[SpanRow],
) -> tuple[Labelled[Stage], ...]:
    launch = launches.get(last.id)
    launched_at = launch.at if launch else last.started
    siblings = (x for x in launches.values() if x.group_id == last.group_id and x.sibling == last.sibling)
    first_at = min((x.at for x in siblings), default=launched_at)
    marks = (
        (line[0], Stage.ADMISSION),
        (line[1], Stage.REFILL),
        (first_at, Stage.ADMISSION),
        (launched_at, Stage.INFRA_RETRY if last.attempt > 0 else Stage.ADMISSION),
        (last.started, Stage.ADMISSION),
    )
    cursor = batch.opened_at
    pieces: list[Labelled[Stage]] = []
    for mark, stage in marks:
        until = min(max(mark, cursor), batch.ready_at)
        pieces.append(Labelled(cursor, until, stage))
        cursor = until
    pieces += flatten(_pieces(spans), cursor, min(max(last.ended, cursor), batch.ready_at), Stage.ASSEMBLY)
    return flatten(pieces, batch.opened_at, batch.ready_at, Stage.ASSEMBLY)


def _pieces(spans: Iterable[SpanRow]) -> tuple[Labelled[Stage], ...]:
    return tuple(Labelled(s.start, s.end, Stage(s.stage)) for s in spans)
