from __future__ import annotations

from collections.abc import Collection

from hypothesis import given
from hypothesis import strategies as st

from factories import make_group
from muster.orchestrator.config import BatchPolicy
from muster.orchestrator.decisions.ready_pool import ReadyPool
from muster.orchestrator.decisions.staleness import Freshness
from muster.types import ReadyGroup


def pool(policy: BatchPolicy, *, window_fraction: float = 0.3, max_lag: int = 0) -> ReadyPool:
    return ReadyPool(policy=policy, window_fraction=window_fraction, freshness=Freshness(max_lag))


def take(ready: ReadyPool, count: int, unresolved: Collection[int]) -> tuple[ReadyGroup, ...] | None:
    return ready.take(count, oldest_open=min(unresolved, default=None), open_groups=len(unresolved))


def test_a_cohort_waits_for_the_slowest_of_its_submissions() -> None:
    ready = pool("cohort")
    for submission in (1, 2, 3):
        ready.add(make_group(submission))
    assert take(ready, 2, {0}) is None
    ready.add(make_group(0))
    taken = take(ready, 2, ())
    assert taken is not None
    assert [g.submission for g in taken] == [0, 1]


def test_greedy_takes_whatever_is_ready() -> None:
    ready = pool("greedy")
    ready.add(make_group(7))
    taken = take(ready, 1, {0, 1, 2})
    assert taken is not None


def test_a_window_reaches_past_the_oldest_but_only_so_far() -> None:
    ready = pool("window", window_fraction=0.5)
    ready.add(make_group(1))
    ready.add(make_group(9))
    unresolved = {0, 2}  # four pending: the window reaches two past submission 0
    assert take(ready, 2, unresolved) is None
    taken = take(ready, 1, unresolved)
    assert taken is not None
    assert taken[0].submission == 1


def test_groups_beyond_the_lag_are_taken_out() -> None:
    ready = pool("greedy", max_lag=1)
    ready.add(make_group(0, version=0))
    ready.add(make_group(1, version=1))
    assert [(g.submission, reason) for g, reason in ready.expire(2)] == [(0, "too_stale")]
    assert len(ready) == 1


@given(
    st.sets(st.integers(0, 30), min_size=1),
    st.sets(st.integers(0, 30)),
    st.integers(1, 5),
    st.sampled_from(["cohort", "fifo", "window", "greedy"]),
)
def test_a_take_is_all_or_nothing_oldest_first(
    submissions: set[int], unresolved: set[int], count: int, policy: BatchPolicy
) -> None:
    ready = pool(policy)
    for submission in submissions:
        ready.add(make_group(submission))
    taken = take(ready, count, unresolved - submissions)
    if taken is None:
        assert len(ready) == len(submissions)
        return
    order = [g.submission for g in taken]
    assert len(order) == count
    assert order == sorted(order)
    assert len(ready) == len(submissions) - count
    if policy in ("cohort", "fifo") and unresolved - submissions:
        assert max(order) < min(unresolved - submissions)
