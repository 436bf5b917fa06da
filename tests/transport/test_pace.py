from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster import clock
from muster.errors import PublicationError
from muster.transport.pace import Pace, TokenBucket


@settings(deadline=None)
@given(
    rate=st.floats(1, 1e9),
    depth=st.floats(1, 1e7),
    events=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 5)), max_size=40),
)
def test_never_more_than_the_rate_and_one_depth_whatever_stalls(rate, depth, events):
    """events: share of a depth taken, and a stall after it."""
    bucket, now, taken = TokenBucket(rate, depth_bytes=depth, now=0.0), 0.0, 0.0
    for share, stall_s in events:
        taken += share * depth
        now += bucket.take(share * depth, now)
        assert taken <= (rate * now + depth) * (1 + 1e-9)
        now += stall_s


def test_a_long_copy_takes_its_size_over_the_rate():
    bucket, now = TokenBucket(1000.0, depth_bytes=100, now=0.0), 0.0
    for _ in range(50):
        now += bucket.take(100, now)
    assert now == pytest.approx(5000 / 1000 - 0.1)


def test_without_a_cap_nothing_waits():
    pace = Pace(max_bytes_per_s=None, timeout_s=60, stopped=threading.Event())
    before = clock.now()
    for _ in range(1000):
        pace.spent(1 << 30)
    assert clock.now() - before < 5


def test_what_cannot_end_in_time_is_refused_before_it_waits():
    pace = Pace(max_bytes_per_s=10.0, timeout_s=60, stopped=threading.Event())
    before = clock.now()
    with pytest.raises(PublicationError, match="60 s"):
        pace.spent(10_000)
    assert clock.now() - before < 5


def test_a_copy_ends_when_it_is_stopped():
    stopped = threading.Event()
    pace = Pace(max_bytes_per_s=None, timeout_s=60, stopped=stopped)
    stopped.set()
    with pytest.raises(PublicationError, match="closed"):
        pace.spent(1)
