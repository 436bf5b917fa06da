from __future__ import annotations

import pytest

from muster.lab.bench.selection import CAUGHT, POLICIES, Selected, run_selection_bench, selected


@pytest.fixture(scope="module")
def runs() -> dict[str, Selected]:
    return {policy: selected(policy, seed=3, steps=10) for policy in ("cohort", "greedy", "drop-stale")}


def test_a_cohort_is_cleared(runs: dict[str, Selected]) -> None:
    assert runs["cohort"].ratio == pytest.approx(1.0)
    assert set(runs["cohort"].inclusion) == {1.0}
    assert runs["cohort"].discarded == 0.0


def test_greedy_batches_begin_short_and_leave_nothing_out(runs: dict[str, Selected]) -> None:
    assert runs["greedy"].first_ratio < CAUGHT
    assert set(runs["greedy"].inclusion) == {1.0}


def test_dropping_by_age_is_caught_though_the_long_ones_were_cancelled(runs: dict[str, Selected]) -> None:
    stale = runs["drop-stale"]
    assert stale.ratio < CAUGHT
    assert stale.ratio == pytest.approx(stale.true_ratio, abs=0.05)
    assert stale.inclusion[-1] == min(stale.inclusion)
    assert stale.inclusion[-1] == pytest.approx(stale.true_inclusion[-1], abs=0.1)


def test_the_table_shows_every_policy_and_its_deciles() -> None:
    result = run_selection_bench(lambda line: None, repetitions=1, steps=2)
    assert [row["policy"] for row in result.rows] == list(POLICIES)
    assert {"d1", "d10", "d10 in truth"} <= result.rows[0].keys()
