from __future__ import annotations

import numpy as np
import pytest

from muster.lab.bench.lag import CLOSE_ENOUGH, GRID, Setting, measured, predicted, run_lag_bench, tail_of

ALIKE = np.full((4, 2), 10.0)
"""Four groups of two siblings that all take ten seconds."""


def test_siblings_that_are_alike_and_start_at_once_take_one_length() -> None:
    assert tail_of(Setting(live=1_000_000, groups=1, group_size=2, rho=0.5), ALIKE) == pytest.approx(1.0, abs=1e-5)


def test_a_sibling_waits_for_the_next_free_slot() -> None:
    assert tail_of(Setting(live=4, groups=1, group_size=2, rho=0.5), ALIKE) == pytest.approx(1.25)


def test_both_forms_follow_their_formula() -> None:
    fast = Setting(live=8, groups=2, group_size=2, rho=0.5)
    tail = tail_of(fast, ALIKE)
    assert predicted(fast, ALIKE, queue=7.0)[0] == pytest.approx(8 * tail / 4 + 0.5), "the queue plays no part"
    slow = Setting(live=8, groups=2, group_size=2, rho=2.0)
    assert predicted(slow, ALIKE, queue=3.0)[0] == pytest.approx(8 * tail / (2 * 4) + (2 * 3 + 2 - 1) / (2 * 2))


def test_the_mean_token_is_younger_by_what_its_trajectory_had_sampled_before() -> None:
    setting = Setting(live=8, groups=2, group_size=2, rho=0.5)
    oldest, mean_token = predicted(setting, ALIKE, queue=1.0)
    # half of its own length, and half of the way between the starts of two siblings, in steps of half a length
    assert oldest - mean_token == pytest.approx(2 * (0.5 + 0.5 / 8))


@pytest.mark.parametrize("rho", [0.5, 1.5])
def test_the_simulated_lag_is_the_predicted_one(rho: float) -> None:
    lag = measured(Setting(live=16, groups=4, group_size=2, rho=rho), seed=1, steps=30)
    assert lag.batches > 10
    assert lag.error <= CLOSE_ENOUGH


def test_a_lag_that_is_off_misses_its_target() -> None:
    said: list[str] = []
    result = run_lag_bench(said.append, grid=[Setting(live=16, groups=4, group_size=2, rho=0.4)], seed=0)
    assert said[0].startswith("1 of 1: live 16")
    assert [t.name for t in result.targets] == ["lag_max_error", "lag_settings"]
    assert not result.met, "one setting is no grid"
    assert len(GRID) >= 12
