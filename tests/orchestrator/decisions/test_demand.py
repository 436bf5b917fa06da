from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from factories import make_task
from muster.orchestrator.config import SchedulerConfig
from muster.orchestrator.decisions.demand import PUT_OFF, SURPLUS, Demand
from muster.orchestrator.decisions.groups import Group


def demand(**options: object) -> Demand:
    return Demand(SchedulerConfig.model_validate({"groups_per_batch": 2, "over_launch": 1.5, **options}))


def groups(numbers: Sequence[int]) -> list[Group]:
    return [Group(id=f"g{n}", task=make_task(f"task{n}"), submission=n, version=0) for n in numbers]


def test_fractions_of_a_group_are_launched_whole() -> None:
    assert [demand(over_launch=1.25).groups(n) for n in (0, 1, 2)] == [0, 3, 5]


@given(held=st.sets(st.integers(0, 50)), batches=st.integers(-1, 3))
def test_the_newest_are_surplus_and_the_oldest_are_held(held: set[int], batches: int) -> None:
    surplus = demand().surplus(batches, ready=(), open=groups(sorted(held)))
    most = 3 * max(0, batches)
    assert [group.submission for group, _ in surplus] == sorted(held)[most:]
    assert {reason for _, reason in surplus} <= {SURPLUS}


def test_a_batch_of_what_was_put_off_begins_when_there_is_enough_of_it_and_is_not_over_launched() -> None:
    one = demand(surplus="tail")
    for number in (3, 7):
        ((_, reason),) = one.surplus(0, ready=(), open=groups([number]))
        assert reason == PUT_OFF
        assert one.next_put_off() is None
        one.opened()
    assert one.groups(1) == 2
    assert one.surplus(0, ready=(), open=groups([9])) == []
    assert [(id, task.id) for id, task in filter(None, (one.next_put_off() for _ in range(3)))] == [
        ("g3", "task3"),
        ("g7", "task7"),
    ]


def test_what_is_carried_is_never_surplus() -> None:
    one = demand(surplus="carry", max_lag=1)
    assert one.surplus(0, ready=(), open=groups([0, 1])) == []
