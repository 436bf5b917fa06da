from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from factories import make_trajectory
from muster.journal import BatchRow, GroupRow, StepRow, TrajectoryRow
from muster.observe.freshness import batch_freshness, freshness, weighted_mean
from muster.observe.outcomes import accounting
from muster.observe.record import read
from muster.observe.report import build_report
from muster.observe.sections import batches
from muster.orchestrator.decisions.drift import Odometer
from muster.types import Segment
from observe.synthetic import SyntheticRun


def test_lag_counts_from_the_version_that_trains(run: SyntheticRun) -> None:
    rows = freshness(read(run.journal))
    assert [r.lag_max for r in rows] == [0] * 6
    assert rows[0].k3 == 2e-4
    assert rows[0].difference == 4e-3


def test_a_trajectory_that_spans_versions_has_the_mean_over_its_tokens(run: SyntheticRun) -> None:
    mixed = Segment(
        tokens_T=np.arange(4, dtype=np.int32),
        sampled_T=np.array([False, True, True, True]),
        logprobs_T=np.zeros(4, np.float32),
        versions_T=np.array([-1, 3, 5, 5], np.int32),
    )
    trajectory = replace(make_trajectory(), id="mixed", segments=(mixed,))
    run.journal.record_trajectory(trajectory, sibling=0, purpose="train")
    row = run.journal.rows(TrajectoryRow, "id = 'mixed'")[0]
    batch = BatchRow(step=6, opened_at=0, ready_at=1, trainer_free_at=0, version=6, groups=["g"], members=["mixed"])
    fresh = batch_freshness(batch, {"mixed": row}, None, Odometer())
    assert fresh.lag_max == 3
    assert fresh.lag_mean == pytest.approx((3 + 1 + 1) / 3)
    assert fresh.tokens == 3
    assert fresh.k3 is None


def moved(run: SyntheticRun, **drift: float | None) -> None:
    """Every step moved the policy by 0.1 nats, but for those of the steps named `s0`, `s1`, …; None: not measured."""
    for row in run.journal.rows(StepRow):
        rms = drift.get(f"s{row.step}", 0.1)
        metrics = {k: v for k, v in row.metrics.items() if k != "drift_m2"} | {"updates": 1.0}
        metrics |= {} if rms is None else {"drift_m2": rms**2}
        run.journal.record(replace(row, metrics=metrics, divergence={"a": 0.01, "b": 0.03}))


def older(run: SyntheticRun, step: int, by: int) -> str:
    """One member of batch `step` was sampled `by` versions earlier than it says."""
    (batch,) = run.journal.rows(BatchRow, "step = ?", step)
    (row,) = run.journal.rows(TrajectoryRow, "id = ?", batch.members[0])
    run.journal.record(replace(row, oldest_version=step - by, newest_version=step - by))
    return row.id


def test_the_distance_of_the_oldest_token_stands_beside_its_lag(run: SyntheticRun) -> None:
    moved(run, s2=0.3)
    older(run, 4, by=2)
    rows = freshness(read(run.journal))
    assert [r.lag_max for r in rows] == [0, 0, 0, 0, 2, 0]
    assert rows[3].distance == 0.0 and rows[4].distance == pytest.approx(0.3 + 0.1)
    assert rows[4].rms == pytest.approx(0.02) and rows[4].worst_k3 == 0.03


def test_a_distance_that_is_assumed_in_part_says_so_and_one_of_which_nothing_is_known_is_not_given(run) -> None:
    moved(run, s3=None)
    older(run, 4, by=2)
    older(run, 5, by=1)
    rows = freshness(read(run.journal))
    assert rows[4].distance == pytest.approx(0.2) and rows[4].assumed == 1
    moved(run, **{f"s{i}": None for i in range(6)})
    older(run, 4, by=2)
    assert freshness(read(run.journal))[4].distance is None


def test_replays_are_counted_apart_from_what_was_sampled_for_the_batch(run: SyntheticRun) -> None:
    moved(run)
    (first,) = run.journal.rows(BatchRow, "step = 0")
    (last,) = run.journal.rows(BatchRow, "step = 5")
    before = freshness(read(run.journal))[5]
    run.journal.record(replace(last, reused=[first.members[1]]))
    after = freshness(read(run.journal))[5]
    assert (after.reused, after.reused_distance) == (1, pytest.approx(0.5))
    assert (after.lag_max, after.tokens, after.distance) == (before.lag_max, before.tokens, before.distance)
    account = accounting(run.journal)
    assert account.reused == 1 and account.clean


def test_the_section_tells_what_was_dropped_and_why_and_what_was_trained_again(run: SyntheticRun) -> None:
    moved(run, s3=None)
    older(run, 4, by=2)
    (batch,) = run.journal.rows(BatchRow, "step = 5")
    run.journal.record(replace(batch, reused=["g000000.1"]))
    row = GroupRow(id="g9", task_id="task-0", submission=900, version=0, admitted_at=run.now, ready_at=run.now)
    run.journal.record(replace(row, state="dropped", closed_at=run.now, drop_reason="diverged"))
    section = batches.freshness(build_report(run.journal, {}))
    assert "2 at most (0.2 nats away, summed over the steps between)" in section.sentence
    assert "1 as too far from the trainer" in section.sentence
    assert "Earlier successes were trained once more: 1." in section.sentence
    table, measured = section.tables
    assert "a step was not measured" in table.title and table.columns[-2:] == ("reused", "their distance")
    assert table.rows[4][table.columns.index("distance")] == "0.2*" and table.rows[5][-2:] == ("1", "0.5")
    assert [row[1:4] for row in measured.rows] == [("0.02", "2.0e-04", "0.03")] * 6


def test_a_run_without_lag_or_replay_has_nothing_more_to_show(run: SyntheticRun) -> None:
    section = batches.freshness(build_report(run.journal, {}))
    assert section.sentence.startswith("Every trained token came from the policy that was trained;")
    assert "reused" not in section.tables[0].columns and "assumed" not in section.tables[0].title


def test_a_mean_skips_what_is_unknown() -> None:
    assert weighted_mean([1.0, None, 3.0], [1, 5, 3]) == 2.5
    assert weighted_mean([None], [1]) is None
