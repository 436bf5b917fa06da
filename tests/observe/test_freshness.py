from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from factories import make_trajectory
from muster.journal import BatchRow, TrajectoryRow
from muster.observe.freshness import batch_freshness, freshness, weighted_mean
from muster.observe.record import read
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
    fresh = batch_freshness(batch, {"mixed": row}, None)
    assert fresh.lag_max == 3
    assert fresh.lag_mean == pytest.approx((3 + 1 + 1) / 3)
    assert fresh.tokens == 3
    assert fresh.k3 is None


def test_a_mean_skips_what_is_unknown() -> None:
    assert weighted_mean([1.0, None, 3.0], [1, 5, 3]) == 2.5
    assert weighted_mean([None], [1]) is None
