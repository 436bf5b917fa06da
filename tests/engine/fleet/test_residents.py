from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from muster.engine.fleet.residents import Residents

NEVER = 1e9


def test_who_was_idle_long_enough_gives_way_the_longest_idle_first() -> None:
    residents = Residents(limit_tokens=1000)
    for at, name in enumerate("abc"):
        residents.starts(name, 300)
        residents.rests(name, 300, now=float(at))
    assert residents.make_room(300, now=10.0, hold_s=10.0)
    assert [name in residents for name in "abc"] == [False, True, True]


def test_who_was_idle_for_less_keeps_its_room_and_says_until_when() -> None:
    residents = Residents(limit_tokens=1000)
    residents.starts("a", 800)
    residents.rests("a", 800, now=5.0)
    assert not residents.make_room(300, now=14.9, hold_s=10.0)
    assert residents.gives_way_at(10.0) == 15.0
    assert residents.make_room(300, now=15.0, hold_s=10.0)
    assert residents.gives_way_at(10.0) is None


def test_who_is_busy_never_gives_way() -> None:
    residents = Residents(limit_tokens=1000)
    residents.starts("a", 800)
    assert not residents.make_room(300, now=NEVER, hold_s=0.0)
    assert residents.gives_way_at(10.0) is None


def test_a_session_larger_than_the_memory_is_let_in_alone() -> None:
    residents = Residents(limit_tokens=1000)
    assert residents.make_room(5000, now=0.0, hold_s=0.0)
    residents.starts("large", 5000)
    assert not residents.make_room(1, now=0.0, hold_s=0.0)
    residents.forget("large")
    assert residents.used_tokens == 0


def test_a_context_that_grew_pushes_out_whoever_was_idle_longest() -> None:
    residents = Residents(limit_tokens=1000)
    for at, name in enumerate("ab"):
        residents.starts(name, 400)
        residents.rests(name, 400, now=float(at))
    residents.starts("b", 700)
    assert "a" not in residents
    assert residents.used_tokens == 700


@given(
    st.lists(
        st.tuples(st.sampled_from(["start", "rest", "forget", "room"]), st.integers(0, 6), st.integers(1, 700)),
        max_size=80,
    )
)
def test_the_idle_are_never_promised_more_than_there_is(events: list[tuple[str, int, int]]) -> None:
    residents = Residents(limit_tokens=1000)
    busy: dict[str, int] = {}
    for now, (what, who, tokens) in enumerate(events):
        name = f"s{who}"
        match what:
            case "start" if name not in busy:
                residents.starts(name, tokens)
                busy[name] = tokens
            case "rest" if name in busy:
                del busy[name]
                residents.rests(name, tokens, float(now))
            case "forget":
                residents.forget(name)
                busy.pop(name, None)
            case "room":
                if residents.make_room(tokens, now=float(now), hold_s=5.0):
                    assert residents.used_tokens + tokens <= 1000 or residents.used_tokens == 0
            case _:
                pass
        assert residents.used_tokens >= 0
        assert residents.used_tokens <= 1000 or residents.gives_way_at(0.0) is None, "only busy ones may exceed it"
        assert residents.busy == len(busy)
