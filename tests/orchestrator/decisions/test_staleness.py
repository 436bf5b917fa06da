from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from factories import make_group, make_trajectory
from muster.journal import StepRow
from muster.orchestrator.decisions.drift import rebuilt
from muster.orchestrator.decisions.reuse import joined
from muster.orchestrator.decisions.staleness import Freshness, lag, oldest_version, over_limit, suspects
from muster.trainer.config import DivergenceLimit
from muster.trainer.port import Divergence
from muster.types import Batch, ReadyGroup

REFILL = DivergenceLimit(max_k3=0.1, action="refill")


def moved(max_lag: int, max_divergence: float | None, *steps: float | None) -> Freshness:
    freshness = Freshness(max_lag, max_divergence)
    for version, rms in enumerate(steps, start=1):
        freshness.moved(version, rms)
    return freshness


def batch(step: int, *groups: ReadyGroup) -> Batch:
    return Batch(step=step, groups=groups, opened_at=0.0, ready_at=1.0)


def test_lag_is_counted_from_the_oldest_token() -> None:
    members = [make_trajectory(version=v) for v in (3, 5)]
    assert lag(members, 6) == 3 and oldest_version(members, default=9) == 3
    assert lag([replace(members[0], segments=())], 6) == 0


def test_the_version_cap_is_a_belt_beside_the_measured_distance() -> None:
    freshness = moved(2, 0.1, 0.01, 0.01, 0.01)
    old, new = [make_trajectory(version=0)], [make_trajectory(version=1)]
    assert freshness.reason(old, 3) == "too_stale"
    assert freshness.reason(new, 3) is None


def test_a_group_within_the_cap_whose_policy_moved_too_far_has_diverged() -> None:
    freshness = moved(4, 0.1, 0.04, 0.08)
    assert freshness.reason([make_trajectory(version=0)], 2) == "diverged"
    assert freshness.reason([make_trajectory(version=1)], 2) is None


def test_the_oldest_token_decides_not_the_newest() -> None:
    freshness = moved(4, 0.1, 0.2, 0.01)
    assert freshness.reason([make_trajectory(version=2), make_trajectory(version=0)], 2) == "diverged"


def test_without_a_limit_by_distance_the_cap_alone_decides() -> None:
    assert moved(1, None, 9.0).reason([make_trajectory(version=0)], 1) is None


@given(st.integers(0, 3), st.floats(0.001, 1), st.lists(st.floats(0, 1), max_size=6), st.integers(0, 8))
def test_what_the_trainers_own_version_sampled_is_always_fresh(max_lag, limit, steps, version) -> None:
    freshness = moved(max_lag, limit, *steps)
    assert freshness.verdict(version, version) is None
    assert version <= freshness.reach(version) <= version + max_lag


@given(st.integers(0, 5), st.floats(0.01, 1), st.lists(st.floats(0, 0.3), max_size=6), st.integers(0, 6))
def test_all_batches_within_reach_may_train_and_the_next_may_not(max_lag, limit, steps, version) -> None:
    freshness = moved(max_lag, limit, *steps)
    reach = freshness.reach(version)
    assert all(freshness.verdict(version, step) is None for step in range(version, reach + 1))
    assert freshness.verdict(version, reach + 1) is not None


@given(st.lists(st.floats(0, 0.3), min_size=1, max_size=6), st.floats(0.01, 1))
def test_the_bound_is_in_force_from_the_first_step_after_a_resume(steps, limit) -> None:
    rows = [
        StepRow(step=i, started=0.0, ended=1.0, metrics={"drift_m2": s**2, "updates": 1.0}) for i, s in enumerate(steps)
    ]
    resumed, continuous = Freshness(4, limit, rebuilt(rows)), moved(4, limit, *(float(np.sqrt(s**2)) for s in steps))
    here = len(steps)
    for version in range(here + 1):
        assert resumed.verdict(version, here) == continuous.verdict(version, here)


def test_only_groups_with_a_stale_token_are_measured() -> None:
    fresh, stale = make_group(0, version=3), make_group(1, version=2)
    assert suspects(batch(3, fresh, stale)) == (stale,)
    reused = joined(fresh, make_trajectory(version=0))
    assert suspects(batch(3, reused)) == (reused,)


def measured(k3: float, *groups: ReadyGroup) -> dict[str, Divergence]:
    return {m.id: Divergence(k3=k3, rms=(2 * k3) ** 0.5) for g in groups for m in g.members}


def test_a_group_with_a_member_over_the_limit_is_replaced() -> None:
    near, far = make_group(0, version=0), make_group(1, version=0)
    found = measured(0.05, near, far) | {far.members[1].id: Divergence(k3=0.2, rms=0.6)}
    assert over_limit(found, REFILL, batch(2, near, far)) == {far.id: "diverged"}


def test_a_group_at_the_limit_stays() -> None:
    group = make_group(0, version=0)
    assert over_limit(measured(0.1, group), REFILL, batch(2, group)) == {}


def test_numerics_alone_never_refuse_a_group_so_that_refilling_ends() -> None:
    group = make_group(0, version=2)
    assert over_limit(measured(9.0, group), REFILL, batch(2, group)) == {}


def test_a_member_that_sampled_nothing_is_not_over_any_limit() -> None:
    group = make_group(0, version=0)
    assert over_limit({}, REFILL, batch(2, group)) == {}


@pytest.mark.parametrize("length", [1, 10_000])
def test_a_long_trajectory_is_not_refused_for_being_long(length: int) -> None:
    """The measure is a mean per token: 10,000 tokens at a ratio of 1.1 are as far away as one is."""
    k3 = float(np.mean(np.full(length, 0.1 - np.log(1.1))))
    group = make_group(0, version=0)
    assert over_limit(measured(k3, group), REFILL, batch(2, group)) == {}
