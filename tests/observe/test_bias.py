from __future__ import annotations

from dataclasses import replace

import pytest

from muster.journal import BatchRow, DropRow, GroupRow, LaunchRow, TrajectoryRow
from muster.observe.bias import bias
from muster.observe.record import read
from observe.synthetic import SyntheticRun


def test_a_batch_of_all_that_was_dispatched_has_no_bias(run: SyntheticRun) -> None:
    ledger = bias(read(run.journal))
    assert [c.step for c in ledger.batches] == [0, 1, 2, 3, 4, 5]
    for comparison in ledger.batches:
        assert comparison.ratio("mean_tokens") == comparison.ratio("solve_rate") == pytest.approx(1.0)


def test_a_batch_that_left_the_longest_group_behind_is_seen_to_be_short(run: SyntheticRun) -> None:
    batch = run.journal.rows(BatchRow)[0]
    middle = batch.groups[1]
    for row in run.journal.rows(TrajectoryRow, "group_id = ?", middle):
        run.journal.record(replace(row, sampled_tokens=1000))
    group = run.journal.rows(GroupRow, "id = ?", middle)[0]
    run.journal.record(
        replace(group, state="dropped", drop_reason="too_stale", step=None),
        replace(
            batch,
            groups=[g for g in batch.groups if g != middle],
            members=[m for m in batch.members if not m.startswith(middle)],
        ),
    )
    ledger = bias(read(run.journal))
    ratio = ledger.batches[0].ratio("mean_tokens")
    assert ratio is not None
    assert ratio < 0.1
    assert ledger.inclusion[-1] < 1.0
    assert ledger.discarded_tokens >= 4000
    assert ledger.discarded_groups["too_stale"] == 2


def test_inclusion_covers_ten_deciles_and_averages_to_the_share_trained(run: SyntheticRun) -> None:
    ledger = bias(read(run.journal))
    assert len(ledger.inclusion) == 10
    assert sum(ledger.inclusion) / 10 == pytest.approx(72 / 76, abs=0.02)


def test_nothing_trained_has_no_ratio(killed: SyntheticRun) -> None:
    rows = replace(read(killed.journal), batches=())
    ledger = bias(rows)
    assert ledger.run.chosen.count == 0
    assert ledger.run.ratio("mean_tokens") is None


def test_tokens_up_to_a_keep_point_count_once_with_the_attempt_that_went_on_from_there(run: SyntheticRun) -> None:
    before = bias(read(run.journal))
    whole = run.journal.rows(TrajectoryRow, "purpose = 'train' AND reward IS NOT NULL")[0]
    lost = replace(whole, id=f"{whole.id}x", verdict="infra", cause="sandbox_lost", reward=None, sampled_tokens=50)
    taken_over = {"launch": lost.id, "snapshot": "kept-1", "turns": 1, "sampled_tokens": 40}
    run.journal.record(lost, replace(whole, evidence={**whole.evidence, "continued": taken_over}))
    after = bias(read(run.journal))
    assert after.sampled_tokens == before.sampled_tokens + 10
    assert after.discarded_tokens == before.discarded_tokens + 10


def test_what_was_cancelled_counts_with_the_mean_length_of_what_got_further(run: SyntheticRun) -> None:
    before = bias(read(run.journal)).run.dispatched
    lengths = sorted(
        t.sampled_tokens for t in run.journal.rows(TrajectoryRow, "purpose = 'train'") if t.reward is not None
    )
    middle = lengths[len(lengths) // 2]
    further = [n for n in lengths if n > middle]
    group = run.journal.rows(GroupRow)[0]
    _drop(run, f"{group.id}.90", group.id, "surplus", middle)
    after = bias(read(run.journal)).run.dispatched
    assert after.count == before.count + 1
    assert before.mean_tokens is not None
    assert after.mean_tokens is not None
    estimate = sum(further) / len(further) if further else middle
    assert after.mean_tokens * after.count == pytest.approx(before.mean_tokens * before.count + estimate)
    assert after.solve_rate == before.solve_rate, "nobody graded it"


def test_what_outlasted_everything_counts_at_what_it_had(run: SyntheticRun) -> None:
    group = run.journal.rows(GroupRow)[0]
    _drop(run, f"{group.id}.90", group.id, "too_stale", 50_000)
    assert bias(read(run.journal)).batches[0].ratio("mean_tokens") < 0.5  # type: ignore[operator]


def test_what_ended_with_its_process_was_not_chosen_against(run: SyntheticRun) -> None:
    before = bias(read(run.journal)).run.dispatched
    group = run.journal.rows(GroupRow)[0]
    _drop(run, f"{group.id}.90", group.id, "interrupted", 50_000)
    assert bias(read(run.journal)).run.dispatched == before


def _drop(run: SyntheticRun, id: str, group_id: str, reason: str, tokens: int) -> None:
    launch = run.journal.rows(LaunchRow, "group_id = ?", group_id)[0]
    run.journal.record(
        replace(launch, id=id, sibling=90), DropRow(id=id, reason=reason, at=launch.at, sampled_tokens=tokens)
    )
