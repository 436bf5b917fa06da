from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.journal import StepRow
from muster.orchestrator.decisions.drift import Odometer, measured, rebuilt

NATS = st.floats(0, 1, allow_subnormal=False)
DRIVES = st.lists(st.one_of(st.none(), NATS), min_size=1, max_size=12)


def driven(moves: list[float | None]) -> Odometer:
    odometer = Odometer()
    for version, rms in enumerate(moves, start=1):
        odometer.moved(version, rms)
    return odometer


def step_row(step: int, **metrics: float) -> StepRow:
    return StepRow(step=step, started=0.0, ended=1.0, metrics=metrics)


def test_steps_add_up() -> None:
    odometer = driven([0.02, 0.03, 0.01])
    assert odometer.distance(0, 3) == pytest.approx(0.06)
    assert odometer.distance(1, 2) == pytest.approx(0.03)
    assert odometer.distance(2, 2) == 0.0


def test_what_nobody_measured_counts_as_the_largest_step_that_was_seen() -> None:
    odometer = driven([0.02, None, 0.05, None])
    assert odometer.distance(0, 4) == pytest.approx(0.02 + 0.05 + 2 * 0.05)
    assert odometer.unknown(0, 4) == 2 and odometer.unknown(2, 3) == 0


def test_steps_that_are_still_to_be_made_are_unknown() -> None:
    odometer = driven([0.02, 0.04])
    assert odometer.distance(1, 4) == pytest.approx(0.04 + 2 * 0.04)
    assert odometer.unknown(1, 4) == 2 and odometer.unknown(5, 9) == 4


def test_a_version_that_was_passed_over_is_unknown() -> None:
    odometer = Odometer()
    odometer.moved(1, 0.1)
    odometer.moved(4, 0.2)
    assert odometer.unknown(0, 4) == 2 and odometer.distance(0, 4) == pytest.approx(0.1 + 0.2 + 2 * 0.2)


@given(DRIVES, st.data())
def test_distance_is_symmetric_additive_and_never_shrinks_as_the_interval_grows(moves, data) -> None:
    odometer, versions = driven(moves), st.integers(0, len(moves) + 3)
    a, b, c = sorted(data.draw(st.tuples(versions, versions, versions)))
    assert odometer.distance(a, b) == odometer.distance(b, a) >= 0
    assert odometer.distance(a, c) == pytest.approx(odometer.distance(a, b) + odometer.distance(b, c), abs=1e-9)
    assert odometer.distance(a, c) >= odometer.distance(b, c) - 1e-9
    assert odometer.unknown(a, c) == odometer.unknown(a, b) + odometer.unknown(b, c)


@given(DRIVES)
def test_a_resumed_run_reads_the_same_distances(moves) -> None:
    rows = [step_row(i, updates=1.0, **({} if m is None else {"drift_m2": m**2})) for i, m in enumerate(moves)]
    odometer = driven([measured(row) for row in rows])
    again = rebuilt(rows)
    last = len(moves) + 2
    assert [odometer.distance(v, last) for v in range(last)] == [again.distance(v, last) for v in range(last)]


@given(st.integers(2, 6), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_on_one_sample_of_tokens_the_sum_is_never_below_a_direct_comparison(versions, tokens, seed) -> None:
    """The triangle inequality of the root-mean-square log-ratio; the k3 of the same policies does not obey it."""
    logprobs_VN = np.cumsum(np.random.default_rng(seed).normal(0, 0.1, (versions, tokens)), axis=0)

    def rms(a: int, b: int) -> float:
        return float(np.sqrt(np.mean((logprobs_VN[a] - logprobs_VN[b]) ** 2)))

    odometer = driven([rms(v, v + 1) for v in range(versions - 1)])
    assert rms(0, versions - 1) <= odometer.distance(0, versions - 1) + 1e-12


def test_a_step_without_an_update_moved_nothing_and_needs_no_sample() -> None:
    assert measured(step_row(0, updates=0.0)) == 0.0
    assert measured(step_row(0, updates=1.0, drift_m2=0.04)) == pytest.approx(0.2)
    assert measured(step_row(0, updates=1.0)) is None
    assert measured(step_row(0)) is None
    assert measured(step_row(0, updates=1.0, drift_m2=math.nan)) is None


@pytest.mark.parametrize("rms", [-0.1, math.inf, math.nan])
def test_only_a_distance_can_be_a_distance(rms: float) -> None:
    with pytest.raises(AssertionError):
        Odometer().moved(1, rms)


def test_no_version_is_counted_twice() -> None:
    odometer = driven([0.1, 0.1])
    with pytest.raises(AssertionError, match="comes after"):
        odometer.moved(2, 0.1)
