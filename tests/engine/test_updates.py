"""What becomes of an order to change weights: done once, answered again, or refused."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.engine.port import CachePolicy, InFlight, Pause
from muster.engine.updates import WeightUpdates
from muster.errors import EngineError
from muster.types import Version

V = [Version(number=number, digest=f"digest-{number}") for number in range(3)]

Orders = st.lists(
    st.one_of(
        st.sampled_from(InFlight),
        st.tuples(st.sampled_from(V), st.sampled_from(CachePolicy)),
        st.sampled_from(V),
        st.sampled_from(["ended", "resume"]),
    ),
    max_size=40,
)


@dataclass
class Served:
    """An engine that computes nothing, and the truth about it."""

    updates: WeightUpdates = field(default_factory=lambda: WeightUpdates("r", V[0]))
    pauses: int = 0  # carried out since the last resume
    asked: int = 0
    answers: list[Pause] = field(default_factory=list[Pause])

    def pause(self, in_flight: InFlight) -> None:
        self.asked += 1
        if self.updates.pause(in_flight, self.answers.append) and in_flight is not InFlight.FINISH:
            self.effect(Pause(held=1))

    def effect(self, pause: Pause) -> None:
        self.pauses += 1
        self.updates.take_effect(pause)

    def drained(self) -> None:
        self.updates.ended()
        if self.updates.drains:
            self.effect(Pause(finished=self.updates.finished))

    def resume(self) -> None:
        assert self.updates.resume() == bool(self.pauses)
        self.pauses = 0

    def commit(self, version: Version, cache: CachePolicy) -> None:
        before = self.updates.version, self.updates.staged, self.updates.salt
        allowed = self.pauses > 0 and version == before[1]
        if version == before[0]:
            assert not self.updates.may_commit(version)
        elif not allowed:
            with pytest.raises(EngineError, match="not staged" if self.pauses else "paused"):
                self.updates.may_commit(version)
        else:
            assert self.updates.may_commit(version)
            self.updates.commit(version, cache)
            assert self.updates.salt == before[2] + (cache is not CachePolicy.SHARE)
            before = version, None, self.updates.salt
        assert (self.updates.version, self.updates.staged, self.updates.salt) == before


@given(Orders)
def test_whatever_the_order_of_orders_a_pause_is_one_pause_and_a_version_changes_only_within_it(
    orders: list[InFlight | Version | tuple[Version, CachePolicy] | str],
) -> None:
    served = Served()
    for order in orders:
        match order:
            case InFlight():
                served.pause(order)
            case Version():
                served.updates.stage(order)
                assert served.updates.holds(order)
            case (version, cache):
                served.commit(version, cache)
            case "ended":
                served.drained()
            case _:
                served.resume()
        assert served.pauses == (served.updates.paused is not None) <= 1
        if served.updates.paused is not None:
            assert len(served.answers) == served.asked, "whoever asked for a pause in effect knows what it met"
            assert served.updates.pausing is not None


def test_a_pause_that_is_asked_for_again_is_the_same_pause_also_while_it_waits() -> None:
    updates, answers = WeightUpdates("r", V[0]), list[Pause]()
    updates.ended()
    assert updates.pause(InFlight.FINISH, answers.append)
    updates.ended()
    assert updates.pause(InFlight.FINISH, answers.append)
    updates.ended()
    assert updates.drains and not answers
    updates.take_effect(Pause(finished=updates.finished))
    assert not updates.pause(InFlight.ABORT, answers.append)
    assert answers == [Pause(finished=2)] * 3


def test_a_commit_whose_answer_was_lost_is_answered_after_the_resume_too() -> None:
    updates = WeightUpdates("r", V[0])
    updates.stage(V[1])
    updates.pause(InFlight.HOLD, lambda _: None)
    updates.take_effect(Pause())
    assert updates.may_commit(V[1])
    updates.commit(V[1], CachePolicy.KEEP)
    updates.resume()
    assert not updates.resume()
    assert not updates.may_commit(V[1])
    assert updates.holds(V[1]) and not updates.holds(V[0])
    with pytest.raises(EngineError, match="r: version 2: commit needs a paused engine"):
        updates.may_commit(V[2])
