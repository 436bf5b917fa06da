"""The laws that only the record can show, checked when a life of the orchestrator ends.

    launches ─► trajectories ⊎ drops        groups ─► trained ⊎ dropped ⊎ what the scheduler still holds

Law: reads the journal alone, as a report would, and compares it with what the scheduler says that it holds.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from muster.journal import BatchRow, DropRow, GroupRow, Journal, LaunchRow, StepRow, TrajectoryRow
from muster.orchestrator.groups import SchedulerStatistics
from muster.sim.laws import Law, LawBroken


def _check(law: Law, holds: bool, message: str) -> None:
    if not holds:
        raise LawBroken(law, message)


def check_life(journal: Journal, scheduler: SchedulerStatistics) -> None:
    """A life that ended by itself: every launch has its end, and no group is forgotten. Raises `LawBroken`."""
    ended = Counter(journal.ids(TrajectoryRow))
    drops = journal.rows(DropRow)
    ended.update(d.id for d in drops)
    launched = set(journal.ids(LaunchRow))
    _check(Law.COUNTS, launched == ended.keys(), f"no single end: {sorted(launched ^ ended.keys())[:5]}")
    _check(Law.COUNTS, all(n == 1 for n in ended.values()), "a launch ended twice")
    _check(Law.COUNTS, all(d.reason for d in drops), "a drop without a reason")
    states = Counter(g.state for g in journal.rows(GroupRow))
    untrained = journal.rows(
        BatchRow, "step >= ?", journal.count(StepRow)
    )  # assembled; the trainer has not come to them
    in_batches = sum(len(b.groups) for b in untrained)
    held = {"open": scheduler.open_groups, "ready": scheduler.ready_groups + in_batches}
    written = {state: states[state] for state in held}  # type: ignore[index]
    _check(Law.LOST, written == held, f"the record has {written}, the scheduler holds {held}")


def check_end(journal: Journal, steps: int) -> None:
    """A run that did all its steps. Raises `LawBroken`."""
    batches = journal.rows(BatchRow)
    _check(Law.COUNTS, [b.step for b in batches] == list(range(steps)), "batches are missing")
    _check(Law.COUNTS, journal.count(StepRow) == steps, "steps are missing")
    members = {t.id: t for t in journal.rows(TrajectoryRow, "purpose = 'train' AND reward IS NOT NULL")}
    trained = {g.id: g for g in journal.rows(GroupRow) if g.state == "trained"}
    for group in journal.rows(GroupRow):
        _check(Law.COUNTS, group.state != "dropped" or bool(group.drop_reason), f"{group.id} dropped without a reason")
    in_batches = [m for b in batches for m in b.members]
    _check(Law.ONCE, len(in_batches) == len(set(in_batches)), "a trajectory is in two batches")
    _check(Law.COUNTS, set(in_batches) <= members.keys(), "a batch trained what is not on record as graded")
    of_trained = {t.id for t in members.values() if t.group_id in trained}
    _check(Law.LOST, set(in_batches) == of_trained, "a graded member of a trained group was left out")
    for batch in batches:
        _check(Law.COUNTS, all(trained[g].step == batch.step for g in batch.groups), "a group's row names another step")
        _check(Law.TTB, batch.opened_at <= batch.ready_at, f"batch {batch.step} was ready before it opened")
    for before, after in pairwise(batches):
        _check(Law.TTB, after.opened_at >= before.ready_at, f"batch {after.step} opened before {before.step} was ready")
