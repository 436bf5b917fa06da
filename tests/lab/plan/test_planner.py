"""Planner: what is tried, what counts as a gain, and what is recommended."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab import small_runs
from muster.lab.plan.changes import Change, unlimited, with_slots
from muster.lab.plan.planner import Comparison, Outcome, SimulatedRun, devices, recommend, slots_needed

WORLD = small_runs.world()


def outcome(ttb_s: float, *, devices: int = 2, length_ratio: float = 1.0) -> Outcome:
    return Outcome(
        ttb_p50_s=ttb_s, ttb_mean_s=ttb_s, trainer_wait_s=0.0, device_s=devices * ttb_s, length_ratio=length_ratio
    )


def comparison(name: str, after_s: Sequence[float], *, devices: int = 2, length_ratio: float = 1.0) -> Comparison:
    """Beside draws that took 100 s each."""
    return Comparison(
        change=Change(name=name, says=name, world=WORLD),
        before=tuple(outcome(100.0) for _ in after_s),
        after=tuple(outcome(s, devices=devices, length_ratio=length_ratio) for s in after_s),
    )


def chosen(*comparisons: Comparison, error: float = 0.0) -> str | None:
    found = recommend(comparisons, SimulatedRun(measured_s=100.0, simulated_s=100.0 * (1 + error)))
    return found.comparison.change.name if found.comparison else None


def test_the_largest_gain_is_recommended() -> None:
    assert chosen(comparison("a", [80, 80]), comparison("b", [60, 60])) == "b"


def test_nothing_is_recommended_when_nothing_gains() -> None:
    assert chosen(comparison("a", [99, 98]), comparison("b", [120, 110])) is None
    assert recommend([], None).comparison is None


def test_a_gain_within_the_spread_of_its_draws_does_not_count() -> None:
    assert chosen(comparison("a", [70, 105, 90, 60, 110])) is None


def test_a_gain_within_the_error_of_the_reproduction_does_not_count() -> None:
    change = comparison("a", [85, 85])
    assert chosen(change, error=0.1) == "a"
    assert chosen(change, error=-0.2) is None


def test_what_selects_short_trajectories_is_never_recommended() -> None:
    assert chosen(comparison("fast", [40, 40], length_ratio=0.8), comparison("fair", [80, 80])) == "fair"


def test_of_equal_gains_the_one_with_fewer_device_hours_is_recommended() -> None:
    assert chosen(comparison("more machines", [50, 50], devices=9), comparison("slots", [50.5, 50.5])) == "slots"


def test_the_interval_holds_the_gain_and_the_nearest_is_told_when_nothing_pays() -> None:
    found = recommend([comparison("a", [97, 99, 95])], None)
    assert found.comparison is None
    assert found.nearest is not None
    low, high = found.nearest.interval
    assert low <= found.nearest.gain <= high


def test_trajectories_and_devices_of_a_world_are_counted() -> None:
    assert unlimited(WORLD) == 16
    assert unlimited(small_runs.world(schedule={"max_lag": 1})) == 32
    assert devices(small_runs.world(fleet={"replicas": 3, "engine": small_runs.engine(devices=2)})) == 7


@given(knee=st.integers(2, 500), most=st.integers(2, 512))
def test_the_fewest_slots_are_found_where_the_ttb_begins_to_rise(knee: int, most: int) -> None:
    def ttb_s(slots: int) -> float:
        return 100.0 * max(1.0, knee / slots)

    fewest, tried = slots_needed(ttb_s, least=2, most=most)
    assert tried[fewest] <= 1.05 * min(tried.values())
    assert all(ttb_s(n) > 1.05 * min(tried.values()) for n in tried if n < fewest)
    if knee <= most:
        assert fewest <= max(2.0, 1.3 * knee)


def test_more_at_once_may_be_slower_and_is_then_not_taken_for_the_best() -> None:
    fewest, _ = slots_needed(lambda n: 100.0 + abs(n - 64), least=8, most=512)
    assert 48 <= fewest <= 64


@pytest.mark.parametrize("number", [1, 3])
def test_a_number_of_slots_is_of_sandboxes_and_of_trajectories(number: int) -> None:
    world = with_slots(WORLD, number)
    assert (world.sandboxes.slots, world.schedule.slots) == (number, number)
