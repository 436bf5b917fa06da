"""No instant is lost, none counted twice."""

from __future__ import annotations

from muster.engine.timeline import Timeline
from muster.types import DeviceState


def test_equal_neighbours_merge_and_the_current_state_is_cut_at_the_question() -> None:
    timeline = Timeline(0.0)
    for state, now in (
        (DeviceState.IDLE, 1.0),
        (DeviceState.DECODE, 2.0),
        (DeviceState.DECODE, 3.0),
        (DeviceState.IDLE, 4.0),
    ):
        timeline.enter(state, now)
    first = timeline.take(5.0)
    assert [(i.state.value, i.start, i.end) for i in first] == [
        ("loading", 0.0, 1.0),
        ("idle", 1.0, 2.0),
        ("decode", 2.0, 4.0),
        ("idle", 4.0, 5.0),
    ]
    assert [(i.state.value, i.start, i.end) for i in timeline.take(6.0)] == [("idle", 5.0, 6.0)]


def test_states_of_no_duration_leave_no_interval() -> None:
    timeline = Timeline(0.0)
    timeline.enter(DeviceState.DECODE, 0.0)
    timeline.enter(DeviceState.IDLE, 0.0)
    assert [i.state for i in timeline.take(1.0)] == [DeviceState.IDLE]
    assert timeline.take(1.0) == ()
