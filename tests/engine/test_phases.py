"""No second of a request's life is lost, none counted twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.engine.phases import Phase, RequestTime

WORKING = [Phase.QUEUED, Phase.PREFILL, Phase.DECODE, Phase.RECOMPUTE]
Events = st.lists(st.tuples(st.sampled_from([*WORKING, "pause", "lose"]), st.floats(0, 100)), max_size=20)


@given(Events)
def test_the_times_of_a_request_add_up_to_its_life(events: list[tuple[str, float]]) -> None:
    time, now, paused_s = RequestTime(5.0), 5.0, 0.0
    for event, passed_s in events:
        now += passed_s
        match event:
            case "pause":
                time.pause(now)
                time.resume(now + passed_s)
                now, paused_s = now + passed_s, paused_s + passed_s
            case "lose":
                time.lose(now)
            case phase:
                time.enter(Phase(phase), now)
    time.end(now)
    assert sum(time.seconds().values()) == pytest.approx(now - 5.0)
    assert time.seconds()["paused_s"] == pytest.approx(paused_s)


@pytest.mark.parametrize("phase", WORKING)
def test_a_pause_gives_back_the_phase_that_it_interrupted_unless_its_work_was_lost_meanwhile(phase: Phase) -> None:
    time = RequestTime(0.0, phase)
    time.pause(1.0)
    time.resume(2.0)
    assert time.phase is phase
    time.pause(3.0)
    time.lose(4.0)
    assert time.phase is Phase.PAUSED
    time.resume(5.0)
    assert time.phase is Phase.RECOMPUTE


def test_a_request_that_arrives_in_a_pause_has_waited_for_the_pause_and_queues_after_it() -> None:
    time = RequestTime(1.0, Phase.PAUSED)
    time.resume(3.0)
    assert (time.phase, time.seconds()["paused_s"], time.seconds()["queue_s"]) == (Phase.QUEUED, 2.0, 0.0)
