"""Resume: what a journal says of where its run stands.

    journal ─► checkpoint k │ batches k … v-1 to train again │ ready groups │ open groups │ interrupted launches

Law: pure, from rows. The journal is the write-ahead log of the run: an update that was lost with the process is
made again from the same batch, so every graded trajectory counts exactly once in the weights. Batches that were
assembled but never trained go back to being ready groups. Where an interrupted launch goes on is for `keeps` to say.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from muster.journal import (
    BatchRow,
    CheckpointRow,
    DropRow,
    GroupRow,
    Journal,
    KeepRow,
    LaunchRow,
    SpanRow,
    StepRow,
    TrajectoryRow,
)
from muster.orchestrator.decisions import drift
from muster.orchestrator.decisions.demand import PUT_OFF
from muster.orchestrator.decisions.drift import Odometer
from muster.orchestrator.decisions.groups import Group
from muster.rollout.keeping import reached_s
from muster.types import Batch, Graded, ReadyGroup, Task, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """State that a run is resumed from. A run that has not begun stands at `Standing()`.

    step: optimiser steps in `checkpoint` (0: the initial weights). version: steps that were ever made.
    redo: the batches between the two. interrupted: launches that a killed process left without an end, with the
    tokens of each that its keep point holds.
    orphaned: open groups whose task is no longer in the suite. put_off: surplus groups whose task is to be
    tried again.
    """

    step: int = 0
    version: int = 0
    checkpoint: Path | None = None
    redo: tuple[Batch, ...] = ()
    ready: tuple[ReadyGroup, ...] = ()
    groups: tuple[Group, ...] = ()
    submissions: int = 0
    interrupted: Mapping[str, int] = field(default_factory=dict[str, int])
    orphaned: tuple[GroupRow, ...] = ()
    put_off: tuple[tuple[str, Task], ...] = ()
    odometer: Odometer = field(default_factory=Odometer)
    scheduler: dict[str, Any] | None = None
    curriculum: dict[str, Any] = field(default_factory=dict[str, Any])


def standing(
    journal: Journal,
    directory: Path,
    tasks: Mapping[str, Task],
    *,
    exists: Callable[[Path], bool] = Path.is_dir,
) -> Standing:
    """Read it. `directory` is the run's; a checkpoint that does not exist there (any more) is passed over."""
    version = journal.count(StepRow)
    checkpoints = [c for c in journal.rows(CheckpointRow) if exists(directory / c.path)]
    step = checkpoints[-1].step if checkpoints else 0
    launches: dict[str, list[LaunchRow]] = defaultdict(list)
    for launch in journal.rows(LaunchRow, "purpose = 'train'"):
        launches[launch.group_id].append(launch)
    rows = journal.rows(GroupRow)
    unfinished = [r for r in rows if r.state in ("open", "ready")]
    known = [r for r in unfinished if r.task_id in tasks]
    return Standing(
        step=step,
        version=version,
        checkpoint=directory / checkpoints[-1].path if checkpoints else None,
        redo=tuple(_batch(journal, row) for row in journal.rows(BatchRow, "step >= ? AND step < ?", step, version)),
        ready=tuple(_ready(journal, r) for r in unfinished if r.state == "ready"),
        groups=tuple(_open(journal, r, tasks[r.task_id], launches[r.id]) for r in known if r.state == "open"),
        submissions=len(rows),
        interrupted=_interrupted(journal),
        orphaned=tuple(r for r in unfinished if r.task_id not in tasks and r.state == "open"),
        put_off=_put_off(rows, tasks),
        odometer=drift.rebuilt(journal.rows(StepRow)),
        scheduler=journal.meta().get("scheduler"),
        curriculum=journal.meta().get("curriculum", {}),
    )


def _ended(journal: Journal, group_id: str) -> list[TrajectoryRow]:
    """In the order of their attempts."""
    rows = journal.rows(TrajectoryRow, "group_id = ? AND purpose = 'train'", group_id)
    return sorted(rows, key=lambda row: row.attempt)


def _members(journal: Journal, ended: Iterable[TrajectoryRow]) -> dict[int, Trajectory]:
    """Graded members by sibling, with their spans."""
    members: dict[int, Trajectory] = {}
    for row in ended:
        if isinstance(row.outcome, Graded):
            spans = journal.rows(SpanRow, "owner = ?", row.id)
            members[row.sibling] = row.trajectory(s.span() for s in spans)
    return members


def _ready(journal: Journal, row: GroupRow) -> ReadyGroup:
    members = _members(journal, _ended(journal, row.id))
    return ReadyGroup(
        id=row.id,
        task_id=row.task_id,
        submission=row.submission,
        members=(*(members[s] for s in sorted(members)), *(journal.trajectory(id) for id in row.reused)),
        reused=tuple(row.reused),
        ready_at=row.ready_at if row.ready_at is not None else row.admitted_at,
    )


def _open(journal: Journal, row: GroupRow, task: Task, launches: list[LaunchRow]) -> Group:
    counts: dict[int, int] = defaultdict(int)
    for launch in launches:
        counts[launch.sibling] += 1
    ended = _ended(journal, row.id)
    group = Group(
        id=row.id,
        task=task,
        submission=row.submission,
        version=row.version,
        replaces=row.replaces,
        members=_members(journal, ended),
        launches=dict(counts),
    )
    for lost in (t for t in ended if not isinstance(t.outcome, Graded)):
        group.lost(lost.sibling, reached_s(lost.evidence))
    return group


def _batch(journal: Journal, row: BatchRow) -> Batch:
    groups = [journal.rows(GroupRow, "id = ?", id)[0] for id in row.groups]
    return Batch(
        step=row.step,
        groups=tuple(_ready(journal, g) for g in groups),
        opened_at=row.opened_at,
        ready_at=row.ready_at,
    )


def _put_off(rows: Sequence[GroupRow], tasks: Mapping[str, Task]) -> tuple[tuple[str, Task], ...]:
    """Groups that were put off and that no later one has replaced yet, oldest first."""
    replaced = {r.replaces for r in rows}
    waiting = (r for r in rows if r.drop_reason == PUT_OFF and r.id not in replaced and r.task_id in tasks)
    return tuple((r.id, tasks[r.task_id]) for r in waiting)


def _interrupted(journal: Journal) -> dict[str, int]:
    ended = {*journal.ids(DropRow), *journal.ids(TrajectoryRow)}
    kept = {row.launch: row.own_tokens for row in journal.rows(KeepRow)}
    return {id: kept.get(id, 0) for id in journal.ids(LaunchRow) if id not in ended}
