from __future__ import annotations

from dataclasses import replace

from muster.journal import BatchRow, DropRow, GroupRow, StepRow, TrajectoryRow
from muster.observe.outcomes import accounting, group_counts, outcomes
from muster.observe.record import read
from muster.types import Verdict
from observe.synthetic import SyntheticRun


def test_launched_is_ended_dropped_and_unfinished(run: SyntheticRun) -> None:
    rows = read(run.journal)
    train, held_out = outcomes(rows, "train"), outcomes(rows, "evaluate")
    assert (train.launched, train.ended, sum(train.dropped.values()), train.unfinished) == (80, 78, 1, 1)
    assert (held_out.launched, held_out.ended, held_out.unfinished) == (40, 40, 0)
    assert train.difference == held_out.difference == 0
    assert (train.count(Verdict.INFRA), train.count(Verdict.UNKNOWN)) == (1, 1)


def test_groups_without_gradient_are_counted_among_complete_ones(run: SyntheticRun) -> None:
    groups = group_counts(read(run.journal))
    assert groups.dropped == {"no_gradient": 1, "too_stale": 1}
    assert (groups.admitted, groups.trained, groups.waiting) == (21, 18, 1)
    assert (groups.complete, groups.without_gradient) == (19, 1)


def test_a_run_that_was_killed_and_resumed_is_clean(run: SyntheticRun) -> None:
    account = accounting(run.journal)
    assert account.clean
    assert account.graded == account.trained + account.kept + account.dropped == 76
    assert (account.trained, account.dropped, account.unfinished) == (72, 4, 1)


def test_a_trajectory_in_two_trained_batches_is_found(run: SyntheticRun) -> None:
    first, second = run.journal.rows(BatchRow)[:2]
    run.journal.record(replace(second, members=[*second.members, first.members[0]]))
    account = accounting(run.journal)
    assert account.trained_twice == (first.members[0],)
    assert not account.clean


def test_a_batch_that_was_never_trained_trains_nobody(killed: SyntheticRun) -> None:
    taken = killed.journal.rows(BatchRow)[0]
    killed.journal.record(replace(taken, step=9, opened_at=killed.now))
    assert accounting(killed.journal).clean
    assert not killed.journal.count(StepRow, "step = 9")


def test_a_batch_that_a_resume_took_apart_is_forgotten(run: SyntheticRun) -> None:
    taken = run.journal.rows(BatchRow)[0]
    run.journal.record(replace(taken, step=9))
    assert [b.step for b in read(run.journal).batches] == [0, 1, 2, 3, 4, 5]


def test_a_graded_trajectory_of_a_trained_group_that_no_batch_holds_is_lost(run: SyntheticRun) -> None:
    batch = run.journal.rows(BatchRow)[0]
    run.journal.record(replace(batch, members=batch.members[1:]))
    assert accounting(run.journal).lost == (batch.members[0],)


def test_a_dropped_group_without_a_reason_has_lost_its_members(run: SyntheticRun) -> None:
    row = run.journal.rows(GroupRow, "drop_reason = 'no_gradient'")[0]
    run.journal.record(replace(row, drop_reason=None))
    assert len(accounting(run.journal).lost) == 4


def test_two_ends_of_one_launch_are_found(run: SyntheticRun) -> None:
    trajectory = run.journal.rows(TrajectoryRow, "id = 'g000000.0'")[0]
    run.journal.record(DropRow(id=trajectory.id, reason="stopped", at=1.0))
    assert accounting(run.journal).launched_twice == ("g000000.0",)
    run.journal.record(replace(trajectory, id="g000000.0-again"))
    account = accounting(run.journal)
    assert account.launched_twice == ("g000000.0", "g000000.0-again")
    assert account.never_launched == ("g000000.0-again",)
