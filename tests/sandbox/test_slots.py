from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from muster.sandbox.slots import Boot, Evict, HandOver, Slots, Warm


def test_requests_boot_while_there_are_slots_and_then_wait_in_order() -> None:
    slots = Slots(capacity=2)
    for ticket in (1, 2, 3, 4):
        slots.request(ticket, "a")
    assert slots.decide() == [Boot(ticket=1), Boot(ticket=2)]
    assert (slots.leased, slots.waiting) == (2, 2)
    slots.released()
    assert slots.decide() == []  # still closing
    slots.closed()
    assert slots.decide() == [Boot(ticket=3)]


def test_a_warm_fork_is_handed_to_the_first_who_asks_for_its_kind() -> None:
    slots = Slots(capacity=3, warm=2)
    slots.want(["a", "a"])
    assert slots.decide() == [Warm(kind="a"), Warm(kind="a")]
    slots.warmed("a")
    slots.request(1, "a")
    assert slots.decide() == [HandOver(ticket=1, kind="a")]


def test_a_request_waits_for_the_fork_of_its_kind_that_is_on_the_way() -> None:
    slots = Slots(capacity=3, warm=1)
    slots.want(["a"])
    slots.decide()
    slots.request(1, "a")
    assert slots.decide() == []
    slots.warmed("a")
    assert slots.decide() == [HandOver(ticket=1, kind="a")]


def test_a_fork_that_failed_to_warm_is_left_to_the_one_who_needs_it() -> None:
    slots = Slots(capacity=3, warm=1)
    slots.want(["a"])
    slots.decide()
    slots.request(1, "a")
    slots.warmed("a", failed=True)
    assert slots.decide() == [Boot(ticket=1)]


def test_warming_stops_where_capacity_or_its_own_limit_ends() -> None:
    slots = Slots(capacity=2, warm=8)
    slots.want(["a", "b", "c"])
    assert slots.decide() == [Warm(kind="a"), Warm(kind="b")]
    limited = Slots(capacity=8, warm=1)
    limited.want(["a", "b", "c"])
    assert limited.decide() == [Warm(kind="a")]


def test_a_request_evicts_a_warm_fork_of_another_kind_when_all_slots_are_used() -> None:
    slots = Slots(capacity=1, warm=1)
    slots.want(["a"])
    slots.decide()
    slots.warmed("a")
    slots.request(1, "b")
    assert slots.decide() == [Evict(kind="a")]
    assert slots.decide() == []
    slots.closed()
    assert slots.decide() == [Boot(ticket=1)]


def test_forks_that_are_wanted_no_more_are_evicted() -> None:
    slots = Slots(capacity=4, warm=4)
    slots.want(["a", "a", "b"])
    slots.decide()
    for kind in ("a", "a", "b"):
        slots.warmed(kind)
    slots.want(["b"])
    assert slots.decide() == [Evict(kind="a"), Evict(kind="a")]


def test_a_withdrawn_request_gets_nothing() -> None:
    slots = Slots(capacity=1)
    slots.request(1, "a")
    slots.request(2, "a")
    slots.decide()
    slots.withdraw(2)
    slots.lapsed()
    assert slots.decide() == []
    assert slots.used == 0


@given(st.data(), st.integers(1, 4), st.integers(0, 4))
def test_whatever_happens_capacity_holds_and_everyone_is_served_in_order(
    data: st.DataObject, capacity: int, warm: int
) -> None:
    slots = Slots(capacity=capacity, warm=warm)
    served: list[int] = []
    asked = 0
    closing = 0

    def decide() -> int:
        evicted = 0
        for action in slots.decide():
            match action:
                case HandOver(ticket=ticket) | Boot(ticket=ticket):
                    served.append(ticket)
                case Evict():
                    evicted += 1
                case Warm():
                    pass
        assert 0 <= slots.used <= capacity
        assert slots.warm.total() + slots.warming.total() <= capacity
        return evicted

    kinds = st.sampled_from("abc")
    for _ in range(data.draw(st.integers(0, 30))):
        warming = [k for k in slots.warming if slots.warming[k] > 0]
        events = ["request", "want"]
        events += ["warmed"] if warming else []
        events += ["released"] if slots.leased else []
        events += ["closed"] if closing else []
        match data.draw(st.sampled_from(events)):
            case "request":
                slots.request(asked, data.draw(kinds))
                asked += 1
            case "want":
                slots.want(data.draw(st.lists(kinds, max_size=5)))
            case "warmed":
                slots.warmed(data.draw(st.sampled_from(warming)), failed=data.draw(st.booleans()))
            case "released":
                slots.released()
                closing += 1
            case _:
                slots.closed()
                closing -= 1
        closing += decide()
    # let everything finish: all are served, first come first served
    slots.want([])
    for _ in range(200):
        for kind in list(slots.warming):
            while slots.warming[kind] > 0:
                slots.warmed(kind)
        while slots.leased:
            slots.released()
            closing += 1
        while closing:
            slots.closed()
            closing -= 1
        closing += decide()
    assert served == list(range(asked))
    assert slots.used == 0
