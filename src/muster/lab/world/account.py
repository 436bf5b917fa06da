"""The laws that only the record can show, checked when a life of the orchestrator ends.

    launches ─► trajectories ⊎ drops        groups ─► trained ⊎ dropped ⊎ what the scheduler still holds
    groups from admission to end ─► never more at once than over-launching allows
    launches of a sibling that is given up ─► all that it may have, those that got further not counted

Law: reads the journal alone, as a report would, and compares it with what the scheduler says that it holds.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise, product

from muster.journal import BatchRow, DropRow, GroupRow, Journal, LaunchRow, StepRow, TrajectoryRow
from muster.lab.world.laws import Law, LawBroken
from muster.lab.world.scenario import Scenario
from muster.orchestrator.decisions.demand import PUT_OFF, SURPLUS
from muster.orchestrator.decisions.groups import SchedulerStatistics
from muster.types import Verdict


def _check(law: Law, holds: bool, message: str) -> None:
    if not holds:
        raise LawBroken(law, message)


def check_life(
    journal: Journal,
    scheduler: SchedulerStatistics,
    scenario: Scenario,
    *,
    resumes: int,
    reached_s: Callable[[str], float],
) -> None:
    """A life that ended by itself: every launch has its end, and no group is forgotten. Raises `LawBroken`.

    resumes: lives before this one. reached_s: the model's own time at the last keep point of a launch, by its id.
    """
    ended = Counter(journal.ids(TrajectoryRow))
    drops = journal.rows(DropRow)
    ended.update(d.id for d in drops)
    launched = set(journal.ids(LaunchRow))
    _check(Law.COUNTS, launched == ended.keys(), f"no single end: {sorted(launched ^ ended.keys())[:5]}")
    _check(Law.COUNTS, all(n == 1 for n in ended.values()), "a launch ended twice")
    _check(Law.COUNTS, all(d.reason for d in drops), "a drop without a reason")
    states = Counter(g.state for g in journal.rows(GroupRow))
    made = journal.count(StepRow)  # beyond it batches wait for the trainer, or were given back
    untrained = journal.rows(BatchRow, "step >= ? AND step < ?", made, scheduler.assembled)
    in_batches = sum(len(b.groups) for b in untrained)
    held = {"open": scheduler.open_groups, "ready": scheduler.ready_groups + in_batches}
    written = {state: states[state] for state in held}  # type: ignore[index]
    _check(Law.LOST, written == held, f"the record has {written}, the scheduler holds {held}")
    _check_surplus(journal.rows(GroupRow), scenario)
    _check_patience(journal, scenario, resumes, reached_s)


def _check_patience(journal: Journal, scenario: Scenario, resumes: int, reached_s: Callable[[str], float]) -> None:
    """Whoever is given up has had its launches; those that got further than any before are not counted among them."""
    closed = [
        g.id for g in journal.rows(GroupRow) if g.ready_at is not None or g.drop_reason in ("short", "no_gradient")
    ]
    attempts: dict[tuple[str, int], list[TrajectoryRow]] = defaultdict(list)
    for row in journal.rows(TrajectoryRow, "purpose = 'train'"):
        attempts[row.group_id, row.sibling].append(row)
    for group_id, sibling in product(closed, range(scenario.group_size)):
        fruitless, furthest_s = 0, 0.0
        ended = sorted(attempts[group_id, sibling], key=lambda row: row.attempt)
        for row in ended:
            further = row.verdict == Verdict.INFRA and reached_s(row.id) > furthest_s
            furthest_s = max(furthest_s, reached_s(row.id)) if further else furthest_s
            fruitless += row.reward is None and not further
        most = scenario.max_attempts
        what = f"{group_id}.{sibling} had {fruitless} fruitless launches of {most}"
        graded = any(row.reward is not None for row in ended)
        _check(Law.PATIENCE, graded or fruitless >= most, f"{what} and was given up")
        _check(Law.PATIENCE, fruitless <= most + resumes, what)


def _check_surplus(rows: Sequence[GroupRow], scenario: Scenario) -> None:
    """At any time groups are held for the batches within the lag, over-launching included, and none beyond."""
    options = scenario.scheduling
    reasons = {r.drop_reason for r in rows} & {SURPLUS, PUT_OFF}
    expected = (
        {SURPLUS} if options.surplus == "cancel" else {SURPLUS, PUT_OFF} if options.surplus == "tail" else set[str]()
    )
    expected = expected if options.over_launch > 1 else set[str]()
    _check(Law.SURPLUS, reasons <= expected, f"groups were dropped as {sorted(map(str, reasons))}")
    put_off = {r.id: r for r in rows if r.drop_reason == PUT_OFF}
    for row in rows:
        task = put_off[row.replaces].task_id if row.replaces in put_off else row.task_id
        _check(Law.SURPLUS, row.task_id == task, f"{row.id} replaces {row.replaces}, and is of another task")
    most = math.ceil((scenario.max_lag + 1) * scenario.groups_per_batch * options.over_launch)
    ends = [(r.closed_at, -1) for r in rows if r.closed_at is not None]
    held = 0
    for at, change in sorted([*((r.admitted_at, 1) for r in rows), *ends]):
        held += change
        _check(Law.SURPLUS, held <= most, f"{held} groups were held at {at:.3f} s, of {most}")


def check_end(journal: Journal, steps: int) -> None:
    """A run that did all its steps. Raises `LawBroken`."""
    batches = journal.rows(BatchRow)
    _check(Law.COUNTS, [b.step for b in batches] == list(range(steps)), "batches are missing")
    _check(Law.COUNTS, journal.count(StepRow) == steps, "steps are missing")
    members = {t.id: t for t in journal.rows(TrajectoryRow, "purpose = 'train' AND reward IS NOT NULL")}
    trained = {g.id: g for g in journal.rows(GroupRow) if g.state == "trained"}
    for group in journal.rows(GroupRow):
        _check(Law.COUNTS, group.state != "dropped" or bool(group.drop_reason), f"{group.id} dropped without a reason")
    in_batches = [m for b in batches for m in b.members if m not in b.reused]
    _check(Law.ONCE, len(in_batches) == len(set(in_batches)), "a trajectory is in two batches")
    _check(Law.COUNTS, set(in_batches) <= members.keys(), "a batch trained what is not on record as graded")
    of_trained = {t.id for t in members.values() if t.group_id in trained}
    _check(Law.LOST, set(in_batches) == of_trained, "a graded member of a trained group was left out")
    for batch in batches:
        _check(Law.COUNTS, all(trained[g].step == batch.step for g in batch.groups), "a group's row names another step")
        _check(Law.TTB, batch.opened_at <= batch.ready_at, f"batch {batch.step} was ready before it opened")
    for before, after in pairwise(batches):
        _check(Law.TTB, after.opened_at >= before.ready_at, f"batch {after.step} opened before {before.step} was ready")
