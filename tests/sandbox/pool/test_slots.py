from __future__ import annotations

from collections.abc import Hashable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.sandbox.pool.slots import Boot, Evict, HandOver, Slots, Tally, Warm


def test_requests_boot_while_there_are_slots_and_then_wait_in_order() -> None:
    slots = Slots(capacity=2)
    for ticket in (1, 2, 3, 4):
        slots.request(ticket, "a")
    assert slots.decide() == [Boot(ticket=1), Boot(ticket=2)]
    assert (slots.leased.total(), slots.waiting) == (2, 2)
    slots.released("a")
    assert slots.decide() == []  # still closing
    slots.closed("a")
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
    slots.closed("a")
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
    slots.lapsed("a")
    assert slots.decide() == []
    assert slots.used == 0


def test_memory_is_room_as_well_as_slots() -> None:
    slots = Slots(capacity=9, memory_bytes=10, weigh=lambda kind: {"small": 2, "large": 8}[str(kind)])
    for ticket, kind in enumerate(["large", "large", "small"]):
        slots.request(ticket, kind)
    assert slots.decide() == [Boot(ticket=0)]  # the second large one waits, and nobody passes it
    slots.released("large")
    assert slots.decide() == []
    slots.closed("large")
    assert slots.decide() == [Boot(ticket=1), Boot(ticket=2)]
    assert slots.used_memory_bytes == 10
    assert Slots(capacity=1, memory_bytes=7, weigh=lambda kind: 8).fits("large") is False


def test_boots_keep_their_distance_and_say_when_to_ask_again() -> None:
    slots = Slots(capacity=9, boots_per_s=2)
    for ticket in range(3):
        slots.request(ticket, "a")
    assert slots.decide(now=10.0) == [Boot(ticket=0)]
    assert slots.wake_at == 10.5
    assert slots.decide(now=10.4) == []
    assert slots.decide(now=10.5) == [Boot(ticket=1)]
    assert slots.decide(now=11.0) == [Boot(ticket=2)]
    assert slots.wake_at is None


WEIGHTS = {"a": 1, "b": 2, "c": 3}


class Played:
    """Slots under whatever happens, with books of what was asked of them and what they did."""

    def __init__(self, capacity: int, warm: int, memory: int, rate: float | None) -> None:
        self.slots = Slots(
            capacity=capacity, warm=warm, memory_bytes=memory, boots_per_s=rate, weigh=lambda kind: WEIGHTS[str(kind)]
        )
        self.capacity, self.memory, self.now = capacity, memory, 0.0
        self.served: list[int] = []
        self.asked: list[str] = []
        self.leased: list[str] = []
        self.closing: list[str] = []

    def warming(self) -> list[Hashable]:
        return [kind for kind in self.slots.warming if self.slots.warming[kind] > 0]

    def decide(self) -> None:
        """Do as they decide; there is room for all of it."""
        for action in self.slots.decide(self.now):
            match action:
                case HandOver(ticket=ticket) | Boot(ticket=ticket):
                    self.served.append(ticket)
                    self.leased.append(self.asked[ticket])
                case Evict(kind=kind):
                    self.closing.append(str(kind))
                case Warm():
                    pass
        assert 0 <= self.slots.used <= self.capacity
        assert 0 <= self.slots.used_memory_bytes <= self.memory
        assert self.slots.leased.total() == len(self.leased)
        assert self.slots.closing.total() == len(self.closing)

    def happens(self, data: st.DataObject) -> None:
        """One event of those that are possible."""
        kinds = st.sampled_from("abc")
        possible = {"warmed": self.warming(), "released": self.leased, "closed": self.closing}
        match data.draw(st.sampled_from(["request", "want", "time", *(e for e, those in possible.items() if those)])):
            case "request":
                self.asked.append(data.draw(kinds))
                self.slots.request(len(self.asked) - 1, self.asked[-1])
            case "want":
                self.slots.want(data.draw(st.lists(kinds, max_size=5)))
            case "time":
                self.now += data.draw(st.sampled_from([0.25, 1.0]))
            case "warmed":
                self.slots.warmed(data.draw(st.sampled_from(self.warming())), failed=data.draw(st.booleans()))
            case "released":
                self.release()
            case _:
                self.slots.closed(self.closing.pop())

    def release(self) -> None:
        self.closing.append(self.leased.pop(0))
        self.slots.released(self.closing[-1])

    def finish(self) -> None:
        """Time passes, and everything that is under way ends."""
        self.now += 1.0
        while self.warming():
            self.slots.warmed(self.warming()[0])
        while self.leased:
            self.release()
        while self.closing:
            self.slots.closed(self.closing.pop())


@given(st.data(), st.integers(1, 4), st.integers(0, 4), st.integers(3, 8), st.sampled_from([None, 1.0]))
def test_whatever_happens_room_is_kept_and_everyone_is_served_in_order(
    data: st.DataObject, capacity: int, warm: int, memory: int, rate: float | None
) -> None:
    played = Played(capacity, warm, memory, rate)
    for _ in range(data.draw(st.integers(0, 30))):
        played.happens(data)
        played.decide()
    played.slots.want([])
    for _ in range(200):
        played.finish()
        played.decide()
    assert played.served == list(range(len(played.asked)))
    assert played.slots.used == 0


def taking_turns(capacity: int = 1) -> Slots:
    slots = Slots(capacity=capacity, slice_s=60.0)
    for ticket in range(capacity):
        slots.request(ticket, "a")
    slots.decide()
    return slots


def test_nobody_gives_way_without_slices_or_while_nobody_waits() -> None:
    slots = Slots(capacity=1)
    slots.request(1, "a")
    slots.decide()
    slots.request(2, "a")
    assert not slots.gives_way(1e9)
    assert not taking_turns().gives_way(1e9)


def test_who_has_had_more_by_a_slice_gives_way_and_waits_behind_those_who_had_less() -> None:
    slots = taking_turns()
    slots.request(7, "a")
    slots.request(8, "a", attained_s=30.0)
    assert not slots.gives_way(59.0)
    assert slots.gives_way(60.0)
    slots.released("a")
    slots.request(9, "a", attained_s=60.0)
    slots.request(10, "a")
    slots.closed("a")
    order: list[int] = []
    for _ in range(4):
        (boot,) = slots.decide()
        assert isinstance(boot, Boot)
        order.append(boot.ticket)
        slots.lapsed("a")
    assert order == [7, 10, 8, 9]


def test_one_gives_way_for_each_that_waits() -> None:
    slots = taking_turns(capacity=3)
    slots.request(7, "a")
    assert slots.gives_way(100.0)
    slots.leaving += 1
    assert not slots.gives_way(100.0), "its place is being freed already"
    slots.leaving -= 1
    slots.released("a")
    assert not slots.gives_way(100.0), "and while it is being closed"


def makespan(lengths: list[int], capacity: int, slice_s: float | None) -> int:
    """Seconds until all are done, one second at a time; pauses cost nothing."""
    slots = Slots(capacity=capacity, slice_s=slice_s)
    had = dict.fromkeys(range(len(lengths)), 0)
    names = {n: n for n in had}  # ticket -> job
    for job in had:
        slots.request(job, "a")
    running: list[int] = []
    now, ticket = 0, len(lengths)
    while True:
        running += [names[action.ticket] for action in slots.decide() if isinstance(action, Boot)]
        if not running:
            return now
        now += 1
        for job in list(running):
            had[job] += 1
            done = had[job] == lengths[job]
            if not done and not slots.gives_way(had[job]):
                continue
            running.remove(job)
            slots.lapsed("a")
            if not done:
                names[ticket] = job
                slots.request(ticket, "a", had[job])
                ticket += 1


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 5))
def test_turns_are_work_conserving_and_never_beyond_what_list_scheduling_allows(
    lengths: list[int], capacity: int
) -> None:
    shortest = max(max(lengths), -(-sum(lengths) // capacity))
    for slice_s in (None, 5.0):
        assert shortest <= makespan(lengths, capacity, slice_s) <= (2 - 1 / capacity) * shortest + 1


def test_turns_end_sooner_when_the_longest_would_have_begun_last() -> None:
    lengths = [10] * 40 + [100]
    assert makespan(lengths, 5, None) == 180
    assert makespan(lengths, 5, 5.0) <= 175
    uneven = [10, 10, 10, 10, 80, 80, 80, 80, 100, 100]
    assert makespan(uneven, 4, 5.0) < makespan(uneven, 4, None)


def test_a_tally_forgets_a_kind_of_which_none_is_left() -> None:
    tally = Tally()
    for kind in ("a", "b", "a"):
        tally.add(kind)
    tally.remove("b")
    assert ([*tally], tally["a"], tally["b"], tally.total()) == (["a"], 2, 0, 2)
    with pytest.raises(KeyError):
        tally.remove("b")


def test_one_who_waits_in_a_long_line_can_withdraw_and_the_others_keep_their_places() -> None:
    slots = Slots(capacity=1)
    for ticket in range(5):
        slots.request(ticket, "a")
    assert slots.decide() == [Boot(ticket=0)]
    slots.withdraw(2)
    slots.lapsed("a")
    assert slots.decide() == [Boot(ticket=1)]
    slots.lapsed("a")
    assert slots.decide() == [Boot(ticket=3)]
