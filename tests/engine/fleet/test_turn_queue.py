from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from muster.engine.fleet.turn_queue import TurnQueue, Waiting


def turn(ticket: int, order: int) -> Waiting:
    return Waiting(ticket=ticket, session=f"s{order}", order=order, tokens=1, reply_tokens=1, since=0.0)


@given(st.permutations(range(12)), st.sets(st.integers(0, 11)))
def test_the_lowest_order_is_first_and_who_left_is_skipped(arrivals: list[int], left: set[int]) -> None:
    line = TurnQueue()
    for ticket, order in enumerate(arrivals):
        line.join(turn(ticket, order))
    for ticket, order in enumerate(arrivals):
        if order in left:
            assert line.leave(ticket)
            assert not line.leave(ticket)
    served: list[int] = []
    while (first := line.first()) is not None:
        served.append(first.order)
        line.leave(first.ticket)
    assert served == sorted(set(range(12)) - left)
    assert len(line) == 0


def test_a_thousand_that_gave_up_leave_nothing_behind() -> None:
    line = TurnQueue()
    for ticket in range(1000):
        line.join(turn(ticket, ticket))
    for ticket in range(1000):
        line.leave(ticket)
    assert len(line) == 0
    assert line.first() is None
